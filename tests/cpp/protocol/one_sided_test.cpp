// The protocol run by hand in one thread: ranks interleave where they wait, or part by part.
#include "protocol/one_sided.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "support/fake_world.hpp"

namespace moe_ep::protocol {
namespace {

using namespace testing;

TEST(OneSidedTest, RandomStepsAreExactInAnyOrderOfArrival) {
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    const int num_ranks = 1 + static_cast<int>(random() % 9);
    const int top_k = 1 + static_cast<int>(random() % 6);
    constexpr int kCapacity = 7;
    constexpr int kWords = 5;
    FakeGroup group(num_ranks, kCapacity, 4 * (kWords + top_k), 4 * kWords);
    for (std::uint32_t step_idx = 0; step_idx < 5; ++step_idx) {
      FakeStep step{.tokens_per_rank = 1 + static_cast<int>(random() % kCapacity),
                    .num_experts = 1 + static_cast<int>(random() % 20),
                    .top_k = top_k,
                    .num_words = 1 + static_cast<int>(random() % kWords),
                    .active = RankMask::first(num_ranks),
                    .invalid_expert_id = round % 2 == 0 ? -1 : 1'000'000};
      FakeWorld world{group, step, random_tokens(num_ranks, step, step_idx, random)};
      ASSERT_NO_FATAL_FAILURE(run_step(world, random)) << "round " << round;
    }
  }
}

// FR-065: the wrap of the epoch is a step as any other.
TEST(OneSidedTest, StepsAcrossTheWrapOfTheEpochAreExact) {
  std::mt19937 random(5);
  for (const Epoch start : {0xfffffffcu, 0x7ffffffcu}) {
    FakeGroup group(3, 4, 64, 64, 0, start);
    FakeStep step{.tokens_per_rank = 4,
                  .num_experts = 6,
                  .top_k = 2,
                  .num_words = 3,
                  .active = RankMask::first(3)};
    for (std::uint32_t step_idx = 0; step_idx < 10; ++step_idx) {
      FakeWorld world{group, step, random_tokens(3, step, step_idx, random)};
      ASSERT_NO_FATAL_FAILURE(run_step(world, random)) << "epoch " << start + step_idx;
    }
    EXPECT_EQ(group.workspace(0).header()->epoch, start + 10);
  }
}

TEST(OneSidedTest, MaskedRanksNeitherReceiveNorHoldAnybodyUp) {
  std::mt19937 random(6);
  FakeGroup group(5, 4, 64, 64);
  RankMask active = RankMask::first(5);
  active.reset(0);
  active.reset(3);
  FakeStep step{.tokens_per_rank = 4,
                .num_experts = 10,
                .top_k = 3,
                .num_words = 3,
                .active = RankMask::first(5)};
  FakeWorld usual{group, step,
                  std::vector<FakeTokens>(5, FakeTokens::make(1, 0, Ids(4, {0, 6, 9}), 3))};
  ASSERT_NO_FATAL_FAILURE(run_step(usual, random));
  step.active = active;
  const auto untouched = [&](int rank) {
    const std::byte* slice = group.workspace(rank).own();
    return std::vector<std::byte>(slice, slice + group.layout().slice_bytes);
  };
  const auto before0 = untouched(0);
  const auto before3 = untouched(3);
  for (std::uint32_t step_idx = 0; step_idx < 20; ++step_idx) {
    FakeWorld world{group, step, random_tokens(5, step, step_idx, random)};
    ASSERT_NO_FATAL_FAILURE(run_step(world, random));
  }
  EXPECT_TRUE(untouched(0) == before0) << "a masked rank's slice was written to";
  EXPECT_TRUE(untouched(3) == before3) << "a masked rank's slice was written to";
}

// A rank writes its own slice and, in others', only its line and its block of rows.
TEST(OneSidedTest, DispatchWritesOnlyItsOwnLineAndBlockOfAPeer) {
  constexpr int kTokens = 3;
  FakeGroup group(3, 8, 64, 64);
  const FakeStep step{.tokens_per_rank = 4,
                      .num_experts = 3,
                      .top_k = 1,
                      .num_words = 5,
                      .active = RankMask::first(3),
                      .timeout_ns = 0};
  const Workspace peer = group.workspace(2);
  const std::vector<std::byte> before(peer.own(), peer.own() + group.layout().slice_bytes);
  FakeWorld world{group, step,
                  std::vector<FakeTokens>(3, FakeTokens::make(9, 1, Ids(kTokens, {2}), 5))};
  FakeMemory memory;
  EXPECT_FALSE(world.dispatch(1, memory).ok());  // nobody else comes
  const DispatchParams& params = world.dispatched[1];
  std::vector<bool> allowed(before.size());
  const auto allow = [&](const std::byte* from, std::int64_t bytes) {
    const auto first = static_cast<std::size_t>(from - peer.own());
    std::fill_n(allowed.begin() + static_cast<std::ptrdiff_t>(first), bytes, true);
  };
  allow(reinterpret_cast<std::byte*>(peer.line(2, 1)), sizeof(PeerLine));
  allow(params.row(2, 0, 1, 0), kTokens * params.row_bytes(0));
  allow(params.row(2, 1, 1, 0), kTokens * params.row_bytes(1));
  for (std::size_t at = 0; at < before.size(); ++at) {
    ASSERT_TRUE(allowed[at] || before[at] == peer.own()[at]) << "byte " << at;
  }
}

// FR-012, FR-064: part by part, rank 0 is already in the next dispatch, with another T, while rank
// 1 still gets its rows of the last combine.
TEST(OneSidedTest, NextDispatchOfAFastRankLeavesTheLastCombineAlone) {
  std::mt19937 random(8);
  for (const int next_tokens : {1, 3, 8}) {
    FakeGroup group(2, 8, 4 * (6 + 2), 4 * 6);
    FakeStep step{.tokens_per_rank = 8,
                  .num_experts = 4,
                  .top_k = 2,
                  .num_words = 6,
                  .active = RankMask::first(2)};
    FakeWorld world{group, step, random_tokens(2, step, 1, random)};
    FakeGroup::run({0, 1}, [&](int rank, FakeMemory& memory) {
      ASSERT_TRUE(world.dispatch(rank, memory).ok());
      world.write_expert_output(rank);
    });
    // Rank 1 has announced its combine and stands still before it gets its rows.
    FakeMemory memory;
    const auto num_tokens1 = static_cast<std::int32_t>(world.tokens[1].ids.size());
    const CombineParams slow = group.combine_params(1, step, num_tokens1);
    announce_combine<FenceTransport>(memory, slow, 1);
    ASSERT_TRUE(world.combine(0, memory).ok());
    // Rank 0 goes on: everything that it may do before it has to wait for rank 1.
    FakeStep next = step;
    next.tokens_per_rank = next_tokens;
    next.num_words = next_tokens == 3 ? 2 : 6;
    const FakeTokens full =
        FakeTokens::make(2, 0, Ids(static_cast<std::size_t>(next_tokens), {0, 3}), next.num_words);
    const DispatchParams fast = group.dispatch_params(0, next, full);
    route_tokens(fast);
    put_tokens<FenceTransport>(memory, fast, 0, 1);
    announce_dispatch<FenceTransport>(memory, fast, 2);

    ASSERT_TRUE(accept_combine<FenceTransport>(memory, slow, 1).ok());
    world.results[1].resize(world.tokens[1].ids.size());
    FakeRows rows{slow, world.results[1]};
    for (std::int32_t token = 0; token < num_tokens1; ++token) {
      const std::byte* sources[kMaxTopK];
      std::int32_t count = 0;
      for_each_hop(slow, token,
                   [&](const Hop& hop) { sources[count++] = slow.row(hop.rank, 1, hop.row); });
      rows.sum(token, sources, count);
    }
    ASSERT_NO_FATAL_FAILURE(world.expect_combined(1)) << "T of the next step " << next_tokens;
  }
}

// Rows of an earlier, larger step must not pass for rows of this one.
TEST(OneSidedTest, RowsOfALargerEarlierStepAreMarkedEmpty) {
  std::mt19937 random(9);
  FakeGroup group(2, 8, 64, 64);
  for (const int tokens_per_rank : {8, 1, 3, 8, 2}) {
    FakeStep step{.tokens_per_rank = tokens_per_rank,
                  .num_experts = 2,
                  .top_k = 2,
                  .num_words = 2,
                  .active = RankMask::first(2)};
    FakeWorld world{group, step, {}};
    const auto count = static_cast<std::size_t>(tokens_per_rank == 8 ? 8 : 0);
    for (int rank = 0; rank < 2; ++rank) {
      world.tokens.push_back(FakeTokens::make(1, rank, Ids(count, {0, 1}), 2));
    }
    ASSERT_NO_FATAL_FAILURE(run_step(world, random)) << "T " << tokens_per_rank;
  }
}

// FR-158: the gathered rows are the ranks' own numbers; masked ranks read as zero.
TEST(OneSidedTest, StatisticsAreGatheredUnchangedAndAbsentRanksAreZero) {
  constexpr int kExperts = 5;
  FakeGroup group(3, 2, 32, 32, kExperts);
  std::vector<std::vector<std::int32_t>> stats;
  for (int rank = 0; rank < 3; ++rank) {
    stats.push_back({rank, -rank, 1 << 30, 100 * rank, 0x7fffffff});
  }
  for (const bool masked : {false, true}) {
    FakeStep step{.tokens_per_rank = 2,
                  .num_experts = 6,
                  .top_k = 1,
                  .num_words = 1,
                  .active = RankMask::first(3)};
    if (masked) step.active.reset(1);
    FakeWorld world{group, step, std::vector<FakeTokens>(3)};
    FakeGroup::run(members_of(step.active), [&](int rank, FakeMemory& memory) {
      DispatchParams params = group.dispatch_params(rank, step, world.tokens[std::size_t(rank)]);
      params.eplb_local_stats = stats[std::size_t(rank)].data();
      FakeCoop coop;
      StepStatus shared;
      ASSERT_TRUE(protocol::dispatch<FenceTransport>(coop, memory, params, shared).ok());
      for (int src = 0; src < 3; ++src) {
        const auto* row = reinterpret_cast<const std::int32_t*>(
            params.workspace.own() + params.workspace.layout.eplb_row(src));
        const auto expected =
            step.active.test(src) ? stats[std::size_t(src)] : std::vector<std::int32_t>(kExperts);
        EXPECT_EQ(std::vector<std::int32_t>(row, row + kExperts), expected) << "rank " << src;
      }
    });
    FakeGroup::run(members_of(step.active),
                   [&](int rank, FakeMemory& memory) { world.combine(rank, memory); });
  }
}

TEST(OneSidedTest, ThreadsOfATeamMarkEmptyRowsTogether) {
  constexpr int kRanks = 7;
  constexpr int kTokens = 3;
  constexpr int kTopK = 2;
  const std::int32_t counts[kRanks] = {0, 1, 2, 3, 0, 3, 1};
  for (int threads = 1; threads <= 9; ++threads) {
    std::vector<std::int32_t> ids(kRanks * kTokens * kTopK, 5);
    for (int thread = 0; thread < threads; ++thread) {
      mark_empty_rows(ids.data(), counts, kRanks, kTokens, kTopK, -9, thread, threads);
    }
    for (int src = 0; src < kRanks; ++src) {
      for (int row = 0; row < kTokens; ++row) {
        for (int k = 0; k < kTopK; ++k) {
          ASSERT_EQ(ids[static_cast<std::size_t>((src * kTokens + row) * kTopK + k)],
                    row < counts[src] ? 5 : -9);
        }
      }
    }
  }
}

TEST(OneSidedTest, ResetArmsTheOwnSliceForAnyEpoch) {
  for (const Epoch epoch : {0u, 41u, 0xffffffffu}) {
    FakeGroup group(3, 2, 32, 32, 0, epoch);
    for (int rank = 0; rank < 3; ++rank) {
      const Workspace workspace = group.workspace(rank);
      EXPECT_EQ(workspace.header()->magic, kSliceMagic);
      EXPECT_EQ(workspace.header()->epoch, epoch);
      for (int src = 0; src < 3; ++src) {
        const PeerLine* line = workspace.line(rank, src);
        EXPECT_EQ(line->dispatch_flag, epoch);
        EXPECT_FALSE(has_reached(line->dispatch_flag, next_epoch(epoch)));
        EXPECT_FALSE(has_reached(line->combine_flag, next_epoch(epoch)));
        EXPECT_EQ(workspace.recv_counts()[src], 0);
      }
    }
  }
}

}  // namespace
}  // namespace moe_ep::protocol
