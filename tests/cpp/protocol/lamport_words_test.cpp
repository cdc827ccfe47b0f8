// Words that carry their own arrival: what changes on the way, and that none is taken too early.
#include "protocol/transport/lamport.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "host/host_memory.hpp"
#include "host/kernels.hpp"
#include "support/fake_memory.hpp"

namespace moe_ep::protocol {
namespace {

using host::HostMemory;
using moe_ep::testing::FakeMemory;

constexpr DataWords kAllWords[] = {DataWords::kBf16, DataWords::kFp8, DataWords::kFp4};

TEST(SentinelTest, SubstitutesMeanWhatTheyStandFor) {
  for (const DataWords words : kAllWords) {
    EXPECT_NE(canonical(sentinel_of(words), words), sentinel_of(words));
    EXPECT_EQ(canonical(0x12345678u, words), 0x12345678u);
    EXPECT_EQ(canonical(substitute_of(words), words), substitute_of(words));
  }
  // Both halves NaN before and after.
  for (const std::uint32_t word : {sentinel_of(DataWords::kBf16), substitute_of(DataWords::kBf16)}) {
    EXPECT_GT(word & 0x7fffu, 0x7f80u);
    EXPECT_GT(word >> 16 & 0x7fffu, 0x7f80u);
  }
  // e4m3 has two NaNs, 0x7f and 0xff.
  EXPECT_EQ(substitute_of(DataWords::kFp8) | 0x80808080u, sentinel_of(DataWords::kFp8));
  // Zeros of either sign: no bit but signs.
  EXPECT_EQ(sentinel_of(DataWords::kFp4) & 0x77777777u, 0u);
  EXPECT_EQ(substitute_of(DataWords::kFp4) & 0x77777777u, 0u);
}

template <class M>
class LamportWordsTest : public ::testing::Test {
 protected:
  static M make() {
    if constexpr (std::is_same_v<M, HostMemory>) {
      return HostMemory{host::kernels().copy};
    } else {
      return M{};
    }
  }
};
using Memories = ::testing::Types<FakeMemory, HostMemory>;
TYPED_TEST_SUITE(LamportWordsTest, Memories);

// Every row size and alignment of source and result, rows of sentinels among them.
TYPED_TEST(LamportWordsTest, RowsOfAnySizeArriveAndAreArmedAgain) {
  auto memory = this->make();
  for (const DataWords words : kAllWords) {
    const std::uint32_t sentinel = sentinel_of(words);
    for (std::int64_t bytes = 1; bytes <= 70; ++bytes) {
      for (const std::int64_t shift : {0, 1, 3}) {
        for (const int fill : {0x00, 0xff, 0x88, 0x5a}) {
          std::vector<std::byte> from(80, std::byte(fill));
          if (fill == 0x5a) {
            for (std::size_t at = 0; at < from.size(); ++at)
              from[at] = std::byte(7 * at);
          }
          alignas(16) std::uint32_t landing[20];
          for (std::uint32_t& word : landing)
            word = sentinel;
          std::vector<std::byte> to(80, std::byte{0x33});
          put_data_row(memory, reinterpret_cast<std::byte*>(landing), from.data() + shift, bytes,
                       words);
          ASSERT_TRUE(take_data_row(memory, to.data() + shift,
                                    reinterpret_cast<std::byte*>(landing), bytes, words, 0));
          for (const std::uint32_t word : landing)
            ASSERT_EQ(word, sentinel) << bytes << " bytes";
          for (std::int64_t at = 0; at < bytes; ++at) {
            const auto index = static_cast<std::size_t>(shift + at);
            const auto got = std::to_integer<int>(to[index]);
            const auto want = std::to_integer<int>(from[index]);
            const bool whole_word = at < bytes / 4 * 4;
            if (got == want) continue;
            ASSERT_TRUE(whole_word) << "a tail changed";
            ASSERT_TRUE(words == DataWords::kFp4 ? want == 0x88 && got == 0x80
                                                 : want == 0xff && got == 0x7f)
                << want << " became " << got;
          }
          ASSERT_EQ(to[static_cast<std::size_t>(shift + bytes)], std::byte{0x33});
          if (shift > 0) {
            ASSERT_EQ(to[static_cast<std::size_t>(shift - 1)], std::byte{0x33});
          }
        }
      }
    }
  }
}

// A row whose words come one by one, in any order, is taken when the last is there.
TYPED_TEST(LamportWordsTest, NoRowIsTakenBeforeItsLastWord) {
  auto memory = this->make();
  const std::uint32_t sentinel = sentinel_of(DataWords::kBf16);
  for (int missing = 0; missing < 9; ++missing) {
    for (const std::int64_t bytes : {36, 34}) {
      alignas(16) std::uint32_t landing[9];
      for (int word = 0; word < 9; ++word)
        landing[word] = word == missing ? sentinel : 0x1000u + static_cast<std::uint32_t>(word);
      std::byte to[36] = {};
      ASSERT_FALSE(take_data_row(memory, to, reinterpret_cast<std::byte*>(landing), bytes,
                                 DataWords::kBf16, 0));
      for (int word = 0; word < 9; ++word)
        EXPECT_EQ(landing[word] == sentinel, word <= missing) << word;
    }
  }
}

TYPED_TEST(LamportWordsTest, TagsKeepEveryBitAndTellStepsApart) {
  auto memory = this->make();
  for (const std::uint32_t value : {0u, ~0u, 0x88888888u, 0x7fc00001u, 0xffffffffu, 1u}) {
    for (const Epoch epoch : {0u, 1u, 0x80000000u, ~0u}) {
      std::uint64_t tags[3];
      for (std::uint64_t& tag : tags)
        tag = make_tag(epoch - 2, value);
      std::byte from[10];
      for (std::size_t at = 0; at < sizeof from; ++at)
        from[at] = static_cast<std::byte>(value >> 8 * (at % 4));
      std::byte to[11] = {};
      EXPECT_FALSE(take_tag_row(memory, to, tags, 10, epoch, 0));
      put_tag_row(memory, tags, from, 10, epoch);
      ASSERT_TRUE(take_tag_row(memory, to, tags, 10, epoch, 0));
      EXPECT_EQ(std::memcmp(to, from, 10), 0);
      EXPECT_EQ(to[10], std::byte{0});
      EXPECT_FALSE(take_tag_row(memory, to, tags, 10, epoch + 1, 0));
    }
  }
}

}  // namespace
}  // namespace moe_ep::protocol
