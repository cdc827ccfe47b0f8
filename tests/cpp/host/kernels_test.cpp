// Every table of kernels computes, bit for bit, what the protocol's element functions say, at any
// length, alignment and number of rows, and touches nothing else.
#include "host/kernels.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "protocol/fp8_wire.hpp"
#include "protocol/reduce.hpp"

namespace moe_ep::host {
namespace {

using namespace moe_ep::protocol;
using Bytes = std::vector<std::byte>;

constexpr Codec kCodecs[] = {Codec::kBf16, Codec::kFp16, Codec::kFp32};
constexpr std::byte kGuard{0xa5};

template <class Visit>
void with_type(Codec codec, Visit&& visit) {
  if (codec == Codec::kBf16) visit(Bf16{});
  if (codec == Codec::kFp16) visit(Fp16{});
  if (codec == Codec::kFp32) visit(Fp32{});
}

// Element `idx` of a row, as float32.
float element(Codec codec, const std::byte* row, std::int64_t idx) {
  float value = 0;
  with_type(codec, [&](auto type) {
    typename decltype(type)::Bits bits;
    std::memcpy(&bits, row + idx * codec_bytes(codec), sizeof bits);
    value = type.to_float(bits);
  });
  return value;
}
void set_element(Codec codec, std::byte* row, std::int64_t idx, float value) {
  with_type(codec, [&](auto type) {
    const auto bits = type.from_float(value);
    std::memcpy(row + idx * codec_bytes(codec), &bits, sizeof bits);
  });
}

void expect_same_elements(Codec codec, const std::byte* got, const std::byte* want,
                          std::int64_t elements, const std::string& what) {
  const std::int64_t size = codec_bytes(codec);
  for (std::int64_t i = 0; i < elements; ++i) {
    if (std::isnan(element(codec, want, i)) && std::isnan(element(codec, got, i))) continue;
    ASSERT_EQ(std::memcmp(got + i * size, want + i * size, static_cast<std::size_t>(size)), 0)
        << what << ", element " << i << ": " << element(codec, got, i) << ", not "
        << element(codec, want, i);
  }
}

// A buffer between guard bytes, at any misalignment.
class Guarded {
 public:
  Guarded(std::int64_t bytes, std::size_t offset)
      : bytes_(static_cast<std::size_t>(bytes)),
        offset_(64 + offset),
        all_(offset_ + bytes_ + 64, kGuard) {}

  std::byte* data() { return all_.data() + offset_; }
  void expect_guards_untouched(const std::string& what) const {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (i >= offset_ && i < offset_ + bytes_) continue;
      ASSERT_EQ(all_[i], kGuard) << what << ", byte " << i << " relative to " << offset_;
    }
  }

 private:
  std::size_t bytes_;
  std::size_t offset_;
  Bytes all_;
};

std::mt19937& random_bits() {
  static std::mt19937 random(17);
  return random;
}

// Any bits: NaNs, infinities, denormals, zeros of both signs; or, by `kind`, tamer numbers.
void fill(Codec codec, std::byte* row, std::int64_t elements, int kind) {
  std::mt19937& random = random_bits();
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < elements; ++i) {
    if (kind == 0) {
      const auto bits = static_cast<std::uint32_t>(random());
      std::memcpy(row + i * codec_bytes(codec), &bits,
                  static_cast<std::size_t>(codec_bytes(codec)));
    } else {
      const float size = kind == 1 ? 1.0f : kind == 2 ? 0x1p-120f : 0x1p-140f;
      set_element(codec, row, i, normal(random) * size);
    }
  }
}

class KernelsTest : public ::testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override {
    if (GetParam() == nullptr) GTEST_SKIP() << "this CPU or build has no such kernels";
  }
  const Kernels& table() const { return *GetParam(); }
};

std::vector<std::int64_t> lengths() {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i <= 300; ++i)
    all.push_back(i);
  for (const std::int64_t i : {511, 2880, 7168, 7169})
    all.push_back(i);
  return all;
}

TEST_P(KernelsTest, CopiesAnyLength) {
  for (const std::int64_t bytes : lengths()) {
    for (const std::size_t offset : {0u, 1u, 16u, 31u}) {
      Bytes src(static_cast<std::size_t>(bytes) + offset);
      for (std::byte& byte : src)
        byte = static_cast<std::byte>(random_bits()());
      for (const auto copy : {table().copy, table().copy_streaming}) {
        Guarded dst(bytes, static_cast<std::size_t>(bytes) % 33);
        copy(dst.data(), src.data() + offset, static_cast<std::size_t>(bytes));
        ASSERT_TRUE(std::equal(dst.data(), dst.data() + bytes, src.data() + offset)) << bytes;
        dst.expect_guards_untouched("copy of " + std::to_string(bytes));
      }
    }
  }
}

void check_sum(const Kernels& table, Codec in, Codec out, int num_rows, std::int64_t elements,
               int kind) {
  std::vector<Bytes> storage;
  std::vector<const std::byte*> rows;
  for (int r = 0; r < num_rows; ++r) {
    const auto offset = static_cast<std::size_t>(random_bits()() % 33);
    storage.emplace_back(static_cast<std::size_t>(elements * codec_bytes(in)) + offset);
    fill(in, storage.back().data() + offset, elements, kind);
    rows.push_back(storage.back().data() + offset);
  }
  Bytes want(static_cast<std::size_t>(elements * codec_bytes(out)));
  for (std::int64_t i = 0; i < elements; ++i) {
    const float sum = sum_element(
        num_rows, [&](int r) { return element(in, rows[static_cast<std::size_t>(r)], i); });
    set_element(out, want.data(), i, sum);
  }
  const std::string what = std::to_string(num_rows) + " rows of " + std::to_string(elements) +
                           ", codecs " + std::to_string(static_cast<int>(in)) + " and " +
                           std::to_string(static_cast<int>(out));
  Guarded got(elements * codec_bytes(out), static_cast<std::size_t>(random_bits()() % 33));
  table.sum_rows(in, rows.data(), num_rows, elements, out, got.data());
  expect_same_elements(out, got.data(), want.data(), elements, what);
  got.expect_guards_untouched(what);
}

TEST_P(KernelsTest, SumsAsTheProtocolSays) {
  for (const Codec in : kCodecs) {
    for (const Codec out : kCodecs) {
      for (const std::int64_t elements : lengths()) {
        const int num_rows = static_cast<int>(random_bits()() % 9);
        check_sum(table(), in, out, num_rows, elements, static_cast<int>(elements % 2));
      }
      for (int num_rows = 0; num_rows <= kMaxSumRows; ++num_rows) {
        for (const std::int64_t elements : {15, 16, 100}) {
          check_sum(table(), in, out, num_rows, elements, num_rows % 4);
        }
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(KernelsTest, SumsOfEveryBf16And16BitPatternPair) {
  for (const Codec codec : {Codec::kBf16, Codec::kFp16}) {
    std::vector<std::uint16_t> ascending(0x10000), shuffled(0x10000);
    for (std::size_t i = 0; i < ascending.size(); ++i) {
      ascending[i] = shuffled[i] = static_cast<std::uint16_t>(i);
    }
    std::shuffle(shuffled.begin(), shuffled.end(), random_bits());
    const std::byte* rows[] = {reinterpret_cast<const std::byte*>(ascending.data()),
                               reinterpret_cast<const std::byte*>(shuffled.data())};
    for (const int num_rows : {1, 2}) {
      for (const Codec out : kCodecs) {
        Bytes got(0x10000 * static_cast<std::size_t>(codec_bytes(out))), want(got.size());
        for (std::int64_t i = 0; i < 0x10000; ++i) {
          set_element(out, want.data(), i,
                      sum_element(num_rows, [&](int r) { return element(codec, rows[r], i); }));
        }
        table().sum_rows(codec, rows, num_rows, 0x10000, out, got.data());
        expect_same_elements(out, got.data(), want.data(), 0x10000, "all patterns");
      }
    }
  }
}

// The wire row that the protocol defines.
Bytes wire_row(Codec codec, const std::byte* src, std::int64_t elements) {
  Bytes wire(static_cast<std::size_t>(fp8_wire_row_bytes(elements)));
  for (std::int64_t first = 0; first < elements; first += kFp8BlockElements) {
    const std::int64_t end = std::min<std::int64_t>(elements, first + kFp8BlockElements);
    std::uint32_t amax = 0;
    for (std::int64_t i = first; i < end; ++i) {
      amax = std::max(amax, fp8_amax_bits(element(codec, src, i)));
    }
    const float scale = fp8_scale(amax);
    for (std::int64_t i = first; i < end; ++i) {
      wire[static_cast<std::size_t>(i)] =
          static_cast<std::byte>(fp8_encode(element(codec, src, i), fp8_encoder(scale)));
    }
    std::memcpy(wire.data() + fp8_scales_offset(elements) + 4 * (first / kFp8BlockElements), &scale,
                4);
  }
  return wire;
}

void check_fp8(const Kernels& table, Codec in, Codec out, int num_rows, std::int64_t elements,
               int kind) {
  const std::string what = std::to_string(num_rows) + " wire rows of " + std::to_string(elements) +
                           ", kind " + std::to_string(kind);
  std::vector<Bytes> storage;
  std::vector<const std::byte*> wires;
  for (int r = 0; r < num_rows; ++r) {
    const auto offset = static_cast<std::size_t>(random_bits()() % 33);
    Bytes src(static_cast<std::size_t>(elements * codec_bytes(in)) + offset);
    fill(in, src.data() + offset, elements, r == 0 ? kind : std::max(kind, r % 4));
    const Bytes want = wire_row(in, src.data() + offset, elements);
    Guarded got(static_cast<std::int64_t>(want.size()), static_cast<std::size_t>(r));
    table.fp8_encode_row(in, src.data() + offset, elements, got.data());
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got.data()[i], want[i]) << what << ", wire byte " << i;
    }
    got.expect_guards_untouched(what);
    storage.emplace_back(want.size() + offset);
    std::copy(want.begin(), want.end(),
              storage.back().begin() + static_cast<std::ptrdiff_t>(offset));
    wires.push_back(storage.back().data() + offset);
  }
  Bytes want(static_cast<std::size_t>(elements * codec_bytes(out)));
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto scale_of = [&](int r) {
      float scale;
      std::memcpy(&scale,
                  wires[static_cast<std::size_t>(r)] + fp8_scales_offset(elements) +
                      4 * (i / kFp8BlockElements),
                  4);
      return scale;
    };
    float max_scale = 0;
    for (int r = 0; r < num_rows; ++r)
      max_scale = std::max(max_scale, scale_of(r));
    const float lift = fp8_lift(max_scale);
    const float sum = sum_element(num_rows, [&](int r) {
      return fp8_decode(static_cast<E4M3::Bits>(wires[static_cast<std::size_t>(r)][i]),
                        scale_of(r) * lift);
    });
    set_element(out, want.data(), i, fp8_unlift(sum, lift));
  }
  Guarded got(elements * codec_bytes(out), static_cast<std::size_t>(random_bits()() % 33));
  table.fp8_sum_rows(wires.data(), num_rows, elements, out, got.data());
  expect_same_elements(out, got.data(), want.data(), elements, what);
  got.expect_guards_untouched(what);
}

TEST_P(KernelsTest, Fp8WireAsTheProtocolSays) {
  for (const Codec codec : kCodecs) {
    for (int kind = 0; kind < 4; ++kind) {
      for (const std::int64_t elements : lengths()) {
        const int num_rows = static_cast<int>(random_bits()() % 5);
        check_fp8(table(), codec, kCodecs[elements % 3], num_rows, elements, kind);
      }
      for (const int num_rows : {0, 7, 33, kMaxSumRows}) {
        check_fp8(table(), codec, codec, num_rows, 200, kind);
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(KernelsTest, EveryFp8CodeDecodes) {
  for (const float scale : {1.0f, 3.0f, 0x1p-140f, 0x1.fp-127f, 0x1.24924p119f}) {
    Bytes wire(static_cast<std::size_t>(fp8_wire_row_bytes(256)));
    for (std::size_t i = 0; i < 256; ++i)
      wire[i] = static_cast<std::byte>(i);
    for (const std::size_t block : {0u, 1u})
      std::memcpy(wire.data() + 256 + 4 * block, &scale, 4);
    const std::byte* wires[] = {wire.data()};
    Bytes got(256 * 4), want(256 * 4);
    table().fp8_sum_rows(wires, 1, 256, Codec::kFp32, got.data());
    const float lift = fp8_lift(scale);
    for (std::int64_t i = 0; i < 256; ++i) {
      const float value = fp8_decode(static_cast<E4M3::Bits>(i), scale * lift);
      set_element(Codec::kFp32, want.data(), i, fp8_unlift(value, lift));
    }
    expect_same_elements(Codec::kFp32, got.data(), want.data(), 256, "all codes");
  }
}

TEST_P(KernelsTest, FiniteOrNan) {
  for (const Codec codec : kCodecs) {
    for (const std::int64_t elements : {0, 1, 5, 31}) {
      Guarded row(elements * codec_bytes(codec), 3);
      fill(codec, row.data(), elements, 0);
      if (elements > 1) set_element(codec, row.data(), 1, -HUGE_VALF);
      Bytes want(row.data(), row.data() + elements * codec_bytes(codec));
      for (std::int64_t i = 0; i < elements; ++i) {
        if (std::isinf(element(codec, want.data(), i))) {
          set_element(codec, want.data(), i, std::nanf(""));
        }
      }
      table().finite_or_nan_row(codec, row.data(), elements, row.data());
      expect_same_elements(codec, row.data(), want.data(), elements, "finite or NaN");
      row.expect_guards_untouched("finite or NaN");
    }
  }
}

// A row that ends where readable memory ends.
TEST_P(KernelsTest, ReadsNothingBeyondARow) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const pages =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<std::byte*>(pages) + page, page, PROT_NONE), 0);
  const std::byte* const end = static_cast<std::byte*>(pages) + page;
  Bytes out(16384);
  for (std::int64_t elements = 0; elements <= 300; ++elements) {
    for (const Codec codec : kCodecs) {
      const std::byte* const row = end - elements * codec_bytes(codec);
      const std::byte* const rows[] = {row, row, row};
      for (const Codec to : kCodecs) {
        for (const int n : {1, 2, 3})
          table().sum_rows(codec, rows, n, elements, to, out.data());
      }
      table().fp8_encode_row(codec, row, elements, out.data());
      table().finite_or_nan_row(codec, row, elements, out.data());
      for (const auto copy : {table().copy, table().copy_streaming}) {
        copy(out.data(), row, static_cast<std::size_t>(elements * codec_bytes(codec)));
      }
    }
    const std::byte* const wire = end - fp8_wire_row_bytes(elements);
    const std::byte* const wires[] = {wire, wire, wire};
    for (const int n : {1, 2, 3})
      table().fp8_sum_rows(wires, n, elements, Codec::kBf16, out.data());
  }
  munmap(pages, 2 * page);
}

INSTANTIATE_TEST_SUITE_P(, KernelsTest, ::testing::Values(&generic_kernels(), avx2_kernels()),
                         [](const auto& param) -> std::string {
                           return param.index == 0 ? "Generic" : "Avx2";
                         });

TEST(KernelsChoiceTest, TakesTheBestTable) {
  const Kernels* const avx2 = avx2_kernels();
  EXPECT_EQ(&kernels(), avx2 != nullptr ? avx2 : &generic_kernels());
#if defined(__x86_64__)
  EXPECT_EQ(avx2 != nullptr, __builtin_cpu_supports("avx2") != 0);  // F16C comes with AVX2
#endif
}

}  // namespace
}  // namespace moe_ep::host
