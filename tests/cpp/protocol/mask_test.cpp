// RankMask against std::bitset.
#include <moe_ep/rank_mask.hpp>

#include <gtest/gtest.h>

#include <bitset>
#include <random>
#include <vector>

namespace moe_ep {
namespace {

using Bits = std::bitset<kMaxRanks>;

RankMask mask_of(const Bits& bits) {
  RankMask mask;
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if (bits[static_cast<std::size_t>(rank)]) mask.set(rank);
  }
  return mask;
}

std::vector<int> members(const RankMask& mask) {
  std::vector<int> ranks;
  mask.for_each([&](int rank) { ranks.push_back(rank); });
  return ranks;
}

void expect_equal(const RankMask& mask, const Bits& bits) {
  EXPECT_EQ(mask.count(), static_cast<int>(bits.count()));
  EXPECT_EQ(mask.empty(), bits.none());
  std::vector<int> expected;
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    ASSERT_EQ(mask.test(rank), bits[static_cast<std::size_t>(rank)]) << rank;
    if (mask.test(rank)) expected.push_back(rank);
  }
  EXPECT_EQ(members(mask), expected);
}

TEST(RankMaskTest, FirstHoldsTheLowestRanksForEveryCount) {
  for (int num_ranks = 0; num_ranks <= kMaxRanks; ++num_ranks) {
    const RankMask mask = RankMask::first(num_ranks);
    ASSERT_EQ(mask.count(), num_ranks);
    for (int rank = 0; rank < kMaxRanks; ++rank)
      ASSERT_EQ(mask.test(rank), rank < num_ranks);
  }
}

TEST(RankMaskTest, RankIsOneBitOfItsWord) {
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    RankMask mask;
    mask.set(rank);
    for (int word = 0; word < kRankMaskWords; ++word) {
      ASSERT_EQ(mask.words[word], word == rank / 64 ? 1ull << rank % 64 : 0) << rank;
    }
    mask.reset(rank);
    ASSERT_TRUE(mask.empty()) << rank;
  }
}

TEST(RankMaskTest, SetOperationsAreThoseOfABitset) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 500; ++round) {
    Bits a;
    Bits b;
    for (std::size_t rank = 0; rank < kMaxRanks; ++rank) {
      a[rank] = random() % 3 == 0;
      b[rank] = random() % 2 == 0;
    }
    expect_equal(mask_of(a), a);
    expect_equal(mask_of(a) & mask_of(b), a & b);
    expect_equal(mask_of(a) | mask_of(b), a | b);
    expect_equal(mask_of(a) - mask_of(b), a & ~b);
    EXPECT_TRUE(mask_of(a) == mask_of(a));
    EXPECT_EQ(mask_of(a) != mask_of(b), a != b);
  }
}

TEST(RankMaskTest, MasksThatDifferInOneRankAreNotEqual) {
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    RankMask mask = RankMask::first(kMaxRanks);
    mask.reset(rank);
    ASSERT_TRUE(mask != RankMask::first(kMaxRanks)) << rank;
    ASSERT_FALSE(mask == RankMask::first(kMaxRanks)) << rank;
  }
}

}  // namespace
}  // namespace moe_ep
