// Lamport steps run by hand in one thread: ranks interleave where they wait.
#include "protocol/transport/lamport_combine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "support/fake_world.hpp"

namespace moe_ep::protocol {
namespace {

using namespace testing;

FakeStep lamport_step(int num_ranks, int tokens, int num_experts, int top_k, int num_words) {
  return {.tokens_per_rank = tokens,
          .num_experts = num_experts,
          .top_k = top_k,
          .num_words = num_words,
          .active = RankMask::first(num_ranks),
          .transport = Transport::kLamport};
}

FakeGroup lamport_group(int num_ranks, int max_tokens, int top_k, int num_words, Epoch epoch = 0) {
  return FakeGroup(num_ranks, max_tokens, 4 * (num_words + top_k), 4 * num_words, 0, epoch,
                   all_regions(max_tokens, top_k, num_words));
}

// All data words of the landing rows in `workspace` hold the sentinel.
::testing::AssertionResult armed(const Workspace& workspace) {
  const LamportLayout& layout = workspace.layout.lamport;
  for (std::int64_t at = layout.rows; at < layout.end; at += 4) {
    const auto word = load_bytes(workspace.own() + at, 4);
    if (word != sentinel_of(DataWords::kBf16))
      return ::testing::AssertionFailure() << "word at " << at << " holds " << word;
  }
  return ::testing::AssertionSuccess();
}

TEST(LamportStepTest, RandomStepsOfAllTransportsAreExact) {
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    const int num_ranks = 1 + static_cast<int>(random() % 9);
    const int top_k = 1 + static_cast<int>(random() % 6);
    constexpr int kCapacity = 7;
    constexpr int kWords = 5;
    FakeGroup group = lamport_group(num_ranks, kCapacity, top_k, kWords);
    for (std::uint32_t step_idx = 0; step_idx < 8; ++step_idx) {
      FakeStep step = lamport_step(num_ranks, 1 + static_cast<int>(random() % kCapacity),
                                   1 + static_cast<int>(random() % 20), top_k,
                                   1 + static_cast<int>(random() % kWords));
      step.invalid_expert_id = round % 2 == 0 ? -1 : 1'000'000;
      const auto draw = random() % 6;
      if (draw < 2) step.transport = draw == 0 ? Transport::kFence : Transport::kCounted;
      FakeWorld world{group, step, random_tokens(num_ranks, step, step_idx, random)};
      ASSERT_NO_FATAL_FAILURE(run_step(world, random)) << "round " << round;
      for (int rank = 0; rank < num_ranks; ++rank)
        ASSERT_TRUE(armed(group.workspace(rank))) << "rank " << rank << ", round " << round;
    }
  }
}

// FR-065.
TEST(LamportStepTest, StepsAcrossTheWrapOfTheEpochAreExact) {
  std::mt19937 random(5);
  for (const Epoch start : {0xfffffffcu, 0x7ffffffcu}) {
    FakeGroup group = lamport_group(3, 4, 2, 3, start);
    for (std::uint32_t step_idx = 0; step_idx < 10; ++step_idx) {
      FakeStep step = lamport_step(3, 4, 6, 2, 3);
      FakeWorld world{group, step, random_tokens(3, step, step_idx, random)};
      ASSERT_NO_FATAL_FAILURE(run_step(world, random)) << "epoch " << start + step_idx;
    }
    EXPECT_EQ(group.workspace(0).header()->epoch, start + 10);
  }
}

TEST(LamportStepTest, MaskedRanksNeitherReceiveNorHoldAnybodyUp) {
  std::mt19937 random(6);
  FakeGroup group = lamport_group(5, 4, 3, 3);
  FakeStep step = lamport_step(5, 4, 10, 3, 3);
  step.active.reset(0);
  step.active.reset(3);
  const std::vector<std::byte> before(group.workspace(3).own(),
                                      group.workspace(3).own() + group.layout().slice_bytes);
  for (std::uint32_t step_idx = 0; step_idx < 20; ++step_idx) {
    FakeWorld world{group, step, random_tokens(5, step, step_idx, random)};
    ASSERT_NO_FATAL_FAILURE(run_step(world, random));
  }
  EXPECT_TRUE(std::equal(before.begin(), before.end(), group.workspace(3).own()))
      << "a masked rank's slice was written to";
}

TEST(LamportStepTest, MissingPeersEndBothPhasesWithATimeout) {
  for (const int absent : {0, 2, 3}) {
    FakeGroup group = lamport_group(4, 2, 1, 1);
    const FakeStep step = lamport_step(4, 2, 4, 1, 1);
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
    // The absent rank finds the others' rows; it is their combine that never comes.
    FakeMemory memory;
    EXPECT_TRUE(world.dispatch(absent, memory).ok());
    const StepStatus status = world.combine(absent, memory);
    EXPECT_EQ(status.result, StepResult::kTimeout);
    EXPECT_EQ(status.phase, Phase::kCombine);
    EXPECT_EQ(status.missing, step.active - missing);
  }
}

// A row that does not come although its line has: the rank that owes it is named.
TEST(LamportStepTest, MissingRowNamesItsRank) {
  std::mt19937 random(1);
  FakeGroup group = lamport_group(3, 2, 1, 4);
  const FakeStep step = lamport_step(3, 2, 3, 1, 4);
  FakeWorld world{group, step, std::vector<FakeTokens>(3, FakeTokens::make(1, 0, {{0}, {1}}, 4))};
  FakeGroup::run({1, 2, 0}, [&](int rank, FakeMemory& memory) {
    if (rank == 0) {  // the last: everybody else's rows are there
      auto* landing = reinterpret_cast<std::uint32_t*>(group.workspace(0).own() +
                                                       group.layout().lamport.row(1, 2, 0));
      ASSERT_NE(landing[3], sentinel_of(DataWords::kBf16));
      landing[3] = sentinel_of(DataWords::kBf16);
    }
    world.dispatch(rank, memory);
  });
  const StepStatus& status = world.statuses[0];
  EXPECT_EQ(status.result, StepResult::kTimeout);
  RankMask missing;
  missing.set(2);
  EXPECT_EQ(status.missing, missing);
}

TEST(LamportStepTest, ResetArmsWhatAnAbortedStepLeft) {
  std::mt19937 random(2);
  FakeGroup group = lamport_group(3, 3, 2, 4);
  const FakeStep step = lamport_step(3, 3, 6, 2, 4);
  FakeWorld world{group, step, random_tokens(3, step, 1, random)};
  FakeGroup::run({0, 1}, [&](int rank, FakeMemory& memory) { world.dispatch(rank, memory); });
  for (int rank = 0; rank < 3; ++rank)
    reset_slice(group.workspace(rank), 7);
  for (std::uint32_t step_idx = 2; step_idx < 6; ++step_idx) {
    FakeWorld next{group, step, random_tokens(3, step, step_idx, random)};
    ASSERT_NO_FATAL_FAILURE(run_step(next, random));
  }
}

TEST(LamportStepTest, EveryDifferenceOfSignaturesIsFoundByEveryRank) {
  for (std::int32_t field = 0; field < kNumSignatureFields; ++field) {
    FakeGroup group = lamport_group(3, 2, 1, 1);
    const FakeStep step = lamport_step(3, 2, 4, 1, 1);
    FakeWorld world{group, step, std::vector<FakeTokens>(3)};
    std::map<int, StepStatus> statuses;
    FakeGroup::run({2, 0, 1}, [&](int rank, FakeMemory& memory) {
      DispatchParams params = group.dispatch_params(rank, step, world.tokens[std::size_t(rank)]);
      if (rank == 1) params.signature.fields[field] += 8;  // ids stay aligned
      FakeCoop coop;
      StepStatus shared;
      statuses[rank] = lamport_dispatch(coop, memory, params, shared);
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(statuses[rank].result, StepResult::kMismatch) << "field " << field;
      EXPECT_EQ(statuses[rank].field, field);
      EXPECT_EQ(statuses[rank].peer, rank == 1 ? 0 : 1);
    }
  }
}

TEST(LamportStepTest, DifferentCombineRowsAreAMismatch) {
  std::mt19937 random(2);
  FakeGroup group = lamport_group(2, 2, 1, 4);
  const FakeStep step = lamport_step(2, 2, 2, 1, 4);
  FakeWorld world{group, step, random_tokens(2, step, 1, random)};
  FakeGroup::run({0, 1}, [&](int rank, FakeMemory& memory) { world.dispatch(rank, memory); });
  FakeGroup::run({0, 1}, [&](int rank, FakeMemory& memory) {
    FakeCoop coop;
    StepStatus shared;
    CombineParams params = group.combine_params(rank, step, 0);
    if (rank == 1) params.row_bytes = 0;
    std::vector<std::vector<std::uint32_t>> results;
    FakeRows rows{params, results};
    const StepStatus status = lamport_combine(coop, memory, rows, params, shared);
    EXPECT_EQ(status.result, StepResult::kMismatch);
    EXPECT_EQ(status.field, static_cast<std::int32_t>(CombineField::kRowBytes));
  });
}

// Nothing that nobody wrote for 2^31 or 2^32 steps passes for new: it has been stamped meanwhile.
TEST(LamportStepTest, OldTagsAndFlagsAreStamped) {
  std::mt19937 random(3);
  FakeGroup group = lamport_group(2, 4, 2, 2);
  const FakeStep step = lamport_step(2, 1, 2, 2, 2);
  const auto first_tag = [&](int token) {
    return *lamport_tags(group.workspace(0), 0, 0, 1, token);
  };
  const auto run_one = [&] {
    FakeWorld world{group, step, random_tokens(2, step, 1, random)};
    ASSERT_NO_FATAL_FAILURE(run_step(world, random));
  };
  run_one();
  EXPECT_EQ(tag_epoch(first_tag(3)), 0u);
  for (int rank = 0; rank < 2; ++rank) {
    // As if that many steps had gone by.
    group.workspace(rank).header()->epoch = kStampSteps;
  }
  run_one();
  const Epoch now = group.workspace(0).header()->epoch;
  EXPECT_EQ(tag_epoch(first_tag(3)), now);
  EXPECT_EQ(group.workspace(0).line(0, 1)->dispatch_flag, now);
  EXPECT_EQ(group.workspace(0).line(0, 1)->combine_flag, now);
  FakeStep fence = step;
  fence.transport = Transport::kFence;
  FakeWorld world{group, fence, random_tokens(2, fence, 1, random)};
  ASSERT_NO_FATAL_FAILURE(run_step(world, random));
  run_one();
}

}  // namespace
}  // namespace moe_ep::protocol
