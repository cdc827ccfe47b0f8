// Routing: hop lists, counts and compact rows, against a loop over tokens and ranks.
#include "protocol/route.hpp"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "support/fake_group.hpp"

namespace moe_ep::protocol {
namespace {

using testing::FakeGroup;
using testing::FakeStep;
using testing::FakeTokens;

using HopList = std::vector<std::pair<int, int>>;  // rank, row

HopList hops_of(const DispatchParams& params, int token) {
  HopList hops;
  for_each_hop(params, token, [&](const Hop& hop) { hops.emplace_back(hop.rank, hop.row); });
  return hops;
}

bool owns(int rank, std::int64_t id, int num_experts, int num_ranks) {
  std::int64_t first = 0;
  for (int peer = 0; peer < num_ranks; ++peer) {
    const int share = num_experts / num_ranks + (peer < num_experts % num_ranks ? 1 : 0);
    if (peer == rank) return id >= first && id < first + share;
    first += share;
  }
  return false;
}

void expect_routed(int num_ranks, int num_experts, int top_k, const RankMask& active,
                   const std::vector<std::vector<std::int64_t>>& ids) {
  const int num_tokens = static_cast<int>(ids.size());
  FakeGroup group(num_ranks, std::max(1, num_tokens), 8 + 4 * top_k, 8);
  const FakeStep step{.tokens_per_rank = std::max(1, num_tokens),
                      .num_experts = num_experts,
                      .top_k = top_k,
                      .num_words = 2,
                      .active = active};
  const FakeTokens tokens = FakeTokens::make(1, 0, ids, 2);
  const DispatchParams params = group.dispatch_params(0, step, tokens);
  route_tokens(params);

  std::vector<int> counts(static_cast<std::size_t>(num_ranks));
  for (int token = 0; token < num_tokens; ++token) {
    HopList expected;
    for (int rank = 0; rank < num_ranks; ++rank) {
      bool visits = false;
      for (const std::int64_t id : ids[static_cast<std::size_t>(token)]) {
        visits = visits || owns(rank, id, num_experts, num_ranks);
      }
      if (visits && active.test(rank)) {
        expected.emplace_back(rank, counts[static_cast<std::size_t>(rank)]++);
      }
    }
    ASSERT_EQ(hops_of(params, token), expected) << "token " << token;
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    ASSERT_EQ(params.workspace.send_counts()[rank], counts[static_cast<std::size_t>(rank)]);
  }
}

TEST(RouteTest, HopsAreAscendingAndRowsCompactForEveryRankCount) {
  std::mt19937 random(3);
  for (int num_ranks = 1; num_ranks <= kMaxRanks; ++num_ranks) {
    const int num_experts = 1 + static_cast<int>(random() % 700);
    const int top_k = 1 + static_cast<int>(random() % kMaxTopK);
    RankMask active;
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (random() % 5 != 0) active.set(rank);
    }
    std::vector<std::vector<std::int64_t>> ids(random() % 9);
    for (auto& token : ids) {
      for (int k = 0; k < top_k; ++k) {
        token.push_back(
            static_cast<std::int64_t>(random() % static_cast<unsigned>(num_experts + 4)) - 2);
      }
    }
    ASSERT_NO_FATAL_FAILURE(expect_routed(num_ranks, num_experts, top_k, active, ids))
        << "R " << num_ranks << ", E " << num_experts << ", K " << top_k;
  }
}

// The list lies in memory that peers can write to: no entry leads out of the workspace.
TEST(RouteTest, EntriesThatNoRoutingMakesEndTheList) {
  FakeGroup group(3, 2, 16, 8);
  RankMask active = RankMask::first(3);
  active.reset(1);
  const FakeStep step{
      .tokens_per_rank = 2, .num_experts = 3, .top_k = 2, .num_words = 2, .active = active};
  const FakeTokens tokens = FakeTokens::make(1, 0, {{0, 2}, {2, 0}}, 2);
  const DispatchParams params = group.dispatch_params(0, step, tokens);
  for (const Hop bad : {Hop{3, 0}, Hop{1, 0}, Hop{1 << 30, 0}, Hop{-5, 0}, Hop{2, 2}, Hop{2, -1},
                        Hop{0, 1 << 30}}) {
    route_tokens(params);
    ASSERT_EQ(hops_of(params, 1), (HopList{{0, 1}, {2, 1}}));
    params.workspace.hops(1)[1] = bad;
    EXPECT_EQ(hops_of(params, 1), (HopList{{0, 1}})) << bad.rank << ", " << bad.row;
  }
  for (const auto& [said, taken] : {std::pair{-1, 0}, {0, 0}, {2, 2}, {3, 2}, {1 << 30, 2}}) {
    params.workspace.recv_counts()[2] = said;
    EXPECT_EQ(num_received(params.workspace, 2, 2), taken);
  }
}

// As many ranks as a token can visit: the list is full and has no end mark.
TEST(RouteTest, FullHopListsAreReadToTheirEnd) {
  for (const int num_ranks : {1, 2, 63, 64, 65, 256}) {
    const int top_k = std::min(num_ranks, kMaxTopK);
    std::vector<std::vector<std::int64_t>> ids(3);
    for (std::size_t token = 0; token < ids.size(); ++token) {
      for (int k = 0; k < top_k; ++k) {
        ids[token].push_back((k * 7 + static_cast<int>(token)) % num_ranks);
      }
    }
    ASSERT_NO_FATAL_FAILURE(
        expect_routed(num_ranks, num_ranks, top_k, RankMask::first(num_ranks), ids));
  }
}

TEST(RouteTest, ListsOfLaterStepsHideThoseOfEarlierOnes) {
  FakeGroup group(4, 3, 32, 8);
  FakeStep step{.tokens_per_rank = 3,
                .num_experts = 4,
                .top_k = 4,
                .num_words = 2,
                .active = RankMask::first(4)};
  const FakeTokens full = FakeTokens::make(1, 0, {{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 1, 2, 3}}, 2);
  route_tokens(group.dispatch_params(0, step, full));
  const FakeTokens few = FakeTokens::make(1, 0, {{-1, -1, -1, -1}, {2, 2, -1, 9}}, 2);
  const DispatchParams params = group.dispatch_params(0, step, few);
  route_tokens(params);
  EXPECT_EQ(hops_of(params, 0), HopList{});
  EXPECT_EQ(hops_of(params, 1), (HopList{{2, 0}}));
  EXPECT_EQ(params.workspace.send_counts()[0], 0);
  EXPECT_EQ(params.workspace.send_counts()[2], 1);
}

TEST(RouteTest, NoTokensMeanZeroCounts) {
  ASSERT_NO_FATAL_FAILURE(expect_routed(5, 10, 3, RankMask::first(5), {}));
}

}  // namespace
}  // namespace moe_ep::protocol
