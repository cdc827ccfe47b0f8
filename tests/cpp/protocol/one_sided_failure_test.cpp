// Steps that end early: who is told what, and that no result comes of them.
#include "protocol/one_sided.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "support/fake_world.hpp"

namespace moe_ep::protocol {
namespace {

using namespace testing;

// FR-093: a wait that gives up fails the phase, names the missing and leaves no result.
TEST(OneSidedFailureTest, MissingPeersEndBothPhasesWithATimeout) {
  for (const int absent : {0, 2, 3}) {
    FakeGroup group(4, 2, 32, 32);
    const FakeStep step{.tokens_per_rank = 2,
                        .num_experts = 4,
                        .top_k = 1,
                        .num_words = 1,
                        .active = RankMask::first(4)};
    FakeWorld world{group, step, std::vector<FakeTokens>(4, FakeTokens::make(1, 0, {{0}, {3}}, 1))};
    std::vector<int> ranks = members_of(step.active);
    ranks.erase(ranks.begin() + absent);
    FakeGroup::run(ranks, [&](int rank, FakeMemory& memory) { world.dispatch(rank, memory); });
    RankMask missing;
    missing.set(absent);
    for (const int rank : ranks) {
      const StepStatus& status = world.statuses[rank];
      EXPECT_EQ(status.result, StepResult::kTimeout);
      EXPECT_EQ(status.phase, Phase::kDispatch);
      EXPECT_EQ(status.missing, missing);
      EXPECT_EQ(status.epoch, 1u);
    }
    // The absent rank finds the others' flags; it is their combine that never comes.
    FakeMemory memory;
    EXPECT_TRUE(world.dispatch(absent, memory).ok());
    const StepStatus status = world.combine(absent, memory);
    EXPECT_EQ(status.result, StepResult::kTimeout);
    EXPECT_EQ(status.phase, Phase::kCombine);
    EXPECT_EQ(status.missing, step.active - missing);
    for (const auto& row : world.results[absent])
      EXPECT_TRUE(row.empty()) << "a sum was written";
  }
}

TEST(OneSidedFailureTest, EveryDifferenceOfSignaturesIsFoundByEveryRank) {
  for (std::int32_t field = 0; field < kNumSignatureFields; ++field) {
    FakeGroup group(3, 2, 32, 32);
    const FakeStep step{.tokens_per_rank = 2,
                        .num_experts = 4,
                        .top_k = 1,
                        .num_words = 1,
                        .active = RankMask::first(3)};
    FakeWorld world{group, step, std::vector<FakeTokens>(3)};
    std::map<int, StepStatus> statuses;
    FakeGroup::run({2, 0, 1}, [&](int rank, FakeMemory& memory) {
      DispatchParams params = group.dispatch_params(rank, step, world.tokens[std::size_t(rank)]);
      if (rank == 1) params.signature.fields[field] += 5;
      FakeCoop coop;
      StepStatus shared;
      statuses[rank] = protocol::dispatch<FenceTransport>(coop, memory, params, shared);
    });
    const std::int32_t usual =
        group.dispatch_params(0, step, world.tokens[0]).signature.fields[field];
    for (int rank = 0; rank < 3; ++rank) {
      const StepStatus& status = statuses[rank];
      EXPECT_EQ(status.result, StepResult::kMismatch) << "field " << field << ", rank " << rank;
      EXPECT_EQ(status.field, field);
      EXPECT_EQ(status.peer, rank == 1 ? 0 : 1);
      EXPECT_EQ(status.want, rank == 1 ? usual + 5 : usual);
      EXPECT_EQ(status.got, rank == 1 ? usual : usual + 5);
    }
  }
}

// What a peer disagrees on explains more than who is late.
TEST(OneSidedFailureTest, MismatchWinsOverATimeout) {
  FakeGroup group(3, 2, 32, 32);
  const FakeStep step{.tokens_per_rank = 2,
                      .num_experts = 4,
                      .top_k = 1,
                      .num_words = 1,
                      .active = RankMask::first(3)};
  FakeWorld world{group, step, std::vector<FakeTokens>(3)};
  PeerLine* line = group.workspace(0).line(0, 2);
  line->dispatch_flag = 1;
  line->signature = group.dispatch_params(2, step, world.tokens[2]).signature;
  line->signature.fields[kTopK] = 77;
  FakeMemory memory;
  const StepStatus status = world.dispatch(0, memory);
  EXPECT_EQ(status.result, StepResult::kMismatch);
  EXPECT_EQ(status.peer, 2);
  EXPECT_EQ(status.got, 77);
}

TEST(OneSidedFailureTest, RowCountsOutsideTheBlockAreCorrupt) {
  for (const std::int32_t count : {-1, 3, 1 << 30}) {
    FakeGroup group(2, 2, 32, 32);
    const FakeStep step{.tokens_per_rank = 2,
                        .num_experts = 4,
                        .top_k = 1,
                        .num_words = 1,
                        .active = RankMask::first(2)};
    FakeWorld world{group, step, std::vector<FakeTokens>(2)};
    std::map<int, StepStatus> statuses;
    FakeGroup::run({1, 0}, [&](int rank, FakeMemory& memory) {
      if (rank == 0) group.workspace(1).line(0, 1)->num_rows = count;  // after rank 1 announced
      statuses[rank] = world.dispatch(rank, memory);
    });
    EXPECT_EQ(statuses[0].result, StepResult::kCorrupt) << count;
    EXPECT_EQ(statuses[0].peer, 1);
    EXPECT_EQ(statuses[0].want, 2);
    EXPECT_EQ(statuses[0].got, count);
    EXPECT_TRUE(statuses[1].ok());
  }
}

// Each rank names the first peer that differs.
TEST(OneSidedFailureTest, DifferentCombineRowsAreAMismatch) {
  for (const bool size_differs : {true, false}) {
    FakeGroup group(3, 2, 32, 32);
    const FakeStep step{.tokens_per_rank = 2,
                        .num_experts = 6,
                        .top_k = 1,
                        .num_words = 1,
                        .active = RankMask::first(3)};
    FakeWorld world{group, step, std::vector<FakeTokens>(3)};
    FakeGroup::run({0, 1, 2}, [&](int rank, FakeMemory& memory) { world.dispatch(rank, memory); });
    std::map<int, StepStatus> statuses;
    FakeGroup::run({0, 2, 1}, [&](int rank, FakeMemory& memory) {
      CombineParams params = group.combine_params(rank, step, 0);
      if (rank > 0 && size_differs) params.row_bytes = 8;
      if (rank > 0 && !size_differs) params.format = kCombineFp32;
      FakeRows rows{params, world.results[rank]};
      FakeCoop coop;
      StepStatus shared;
      statuses[rank] = protocol::combine<FenceTransport>(coop, memory, rows, params, shared);
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(statuses[rank].result, StepResult::kMismatch);
      EXPECT_EQ(statuses[rank].phase, Phase::kCombine);
      EXPECT_EQ(statuses[rank].peer, rank == 0 ? 1 : 0);
      EXPECT_EQ(statuses[rank].field,
                static_cast<std::int32_t>(size_differs ? CombineField::kRowBytes
                                                       : CombineField::kFormat));
      const std::int64_t usual = size_differs ? 4 : kCombineBf16;
      const std::int64_t other = size_differs ? 8 : kCombineFp32;
      EXPECT_EQ(statuses[rank].want, rank == 0 ? usual : other);
      EXPECT_EQ(statuses[rank].got, rank == 0 ? other : usual);
    }
  }
}

}  // namespace
}  // namespace moe_ep::protocol
