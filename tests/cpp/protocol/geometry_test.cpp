// Ownership and the ranks a token visits, against counting: every expert is dealt out one by one.
#include "protocol/geometry.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace moe_ep::protocol {
namespace {

constexpr std::int32_t kMaxInt = std::numeric_limits<std::int32_t>::max();

// Owner of each expert, dealt out: the first `rem` ranks take base + 1 each, the others base.
std::vector<int> dealt_owners(int num_experts, int num_ranks) {
  std::vector<int> owners;
  for (int rank = 0; rank < num_ranks; ++rank) {
    int share = num_experts / num_ranks;
    if (rank < num_experts % num_ranks) ++share;
    owners.insert(owners.end(), static_cast<std::size_t>(share), rank);
  }
  return owners;
}

std::vector<int> expert_counts(int num_ranks) {
  return {1,  2,   num_ranks - 1, num_ranks, num_ranks + 1, 2 * num_ranks + num_ranks / 2,
          10, 256, 257,           4096};
}

static_assert(Ownership::make(10, 4).owner(5) == 1);
static_assert(Ownership::make(10, 4).num_local(3) == 2);

TEST(GeometryTest, OwnersPartitionTheExpertsForEveryRankCount) {
  for (int num_ranks = 1; num_ranks <= kMaxRanks; ++num_ranks) {
    for (const int num_experts : expert_counts(num_ranks)) {
      if (num_experts < 1) continue;
      const Ownership ownership = Ownership::make(num_experts, num_ranks);
      const std::vector<int> owners = dealt_owners(num_experts, num_ranks);
      ASSERT_EQ(owners.size(), static_cast<std::size_t>(num_experts));
      for (int id = 0; id < num_experts; ++id) {
        ASSERT_EQ(ownership.owner(id), owners[static_cast<std::size_t>(id)])
            << "expert " << id << " of " << num_experts << " on " << num_ranks << " ranks";
      }
      std::int32_t next = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        ASSERT_EQ(ownership.first_expert(rank), next) << rank << " of " << num_ranks;
        next += ownership.num_local(rank);
      }
      ASSERT_EQ(next, num_experts);
    }
  }
}

// FR-029, FR-030.
TEST(GeometryTest, BlocksOfUnevenPartitionsAreTheExpectedSizes) {
  const auto sizes = [](int num_experts, int num_ranks) {
    std::vector<int> result;
    for (int rank = 0; rank < num_ranks; ++rank) {
      result.push_back(Ownership::make(num_experts, num_ranks).num_local(rank));
    }
    return result;
  };
  EXPECT_EQ(sizes(10, 4), (std::vector<int>{3, 3, 2, 2}));
  EXPECT_EQ(sizes(256, 3), (std::vector<int>{86, 85, 85}));
  EXPECT_EQ(sizes(2, 4), (std::vector<int>{1, 1, 0, 0}));
}

TEST(GeometryTest, LargestExpertCountsDoNotOverflow) {
  for (const int num_experts : {kMaxInt, kMaxInt - 1, kMaxInt - 255}) {
    for (int num_ranks = 1; num_ranks <= kMaxRanks; ++num_ranks) {
      const Ownership ownership = Ownership::make(num_experts, num_ranks);
      ASSERT_EQ(ownership.owner(0), 0);
      ASSERT_EQ(ownership.owner(num_experts - 1), num_ranks - 1);
      for (int rank = 0; rank < num_ranks; ++rank) {
        const std::int32_t first = ownership.first_expert(rank);
        ASSERT_EQ(ownership.owner(first), rank);
        ASSERT_EQ(ownership.owner(first + ownership.num_local(rank) - 1), rank);
      }
    }
  }
}

// FR-033, FR-036, FR-041.
TEST(GeometryTest, OnlyIdsOfExpertsAreNotVoid) {
  const Ownership ownership = Ownership::make(10, 4);
  for (const std::int64_t id : {0, 3, 9})
    EXPECT_FALSE(ownership.is_void(id)) << id;
  for (const std::int64_t id :
       {std::int64_t{-1}, std::int64_t{-7}, std::int64_t{10}, std::int64_t{kMaxInt},
        (std::int64_t{1} << 32) + 3, (std::int64_t{1} << 32) * 7, -(std::int64_t{1} << 32) + 3,
        std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_TRUE(ownership.is_void(id)) << id;
  }
}

TEST(GeometryTest, IdRowsReadBothWidths) {
  const std::int32_t narrow[] = {-1, 7, kMaxInt};
  const std::int64_t wide[] = {-1, 7, (std::int64_t{1} << 32) + 7};
  const IdRow narrow_row{narrow, false};
  const IdRow wide_row{wide, true};
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(narrow_row[k], narrow[k]);
    EXPECT_EQ(wide_row[k], wide[k]);
  }
}

// FR-034: duplicates collapse, whatever their number.
TEST(GeometryTest, TokenVisitsEachOwnerOnceAndOnlyActiveOnes) {
  std::mt19937 random(20240601);
  for (int round = 0; round < 20'000; ++round) {
    const int num_ranks = 1 + static_cast<int>(random() % kMaxRanks);
    const int num_experts = 1 + static_cast<int>(random() % 600);
    const int top_k = 1 + static_cast<int>(random() % kMaxTopK);
    const auto owners = dealt_owners(num_experts, num_ranks);
    RankMask active;
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (random() % 4 != 0) active.set(rank);
    }
    std::vector<std::int64_t> ids;
    std::set<int> expected;
    for (int k = 0; k < top_k; ++k) {
      switch (random() % 8) {
        case 0:
          ids.push_back(-1 - static_cast<std::int64_t>(random() % 3));
          break;
        case 1:
          ids.push_back(num_experts + static_cast<std::int64_t>(random() % 3));
          break;
        case 2:
          ids.push_back((std::int64_t{1} << 32) + random() % 4);
          break;
        default:
          ids.push_back(random() % static_cast<unsigned>(num_experts));
      }
      if (ids.back() < 0 || ids.back() >= num_experts) continue;
      const int owner = owners[static_cast<std::size_t>(ids.back())];
      if (active.test(owner)) expected.insert(owner);
    }
    std::vector<int> visited;
    ranks_of_token(Ownership::make(num_experts, num_ranks), {ids.data(), true}, top_k, active)
        .for_each([&](int rank) { visited.push_back(rank); });
    ASSERT_EQ(visited, std::vector<int>(expected.begin(), expected.end())) << "round " << round;
  }
}

}  // namespace
}  // namespace moe_ep::protocol
