// Counted steps run by hand in one thread.
#include "protocol/transport/counted.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "support/fake_world.hpp"

namespace moe_ep::protocol {
namespace {

using namespace testing;

FakeStep counted_step(int num_ranks) {
  return {.tokens_per_rank = 4,
          .num_experts = 6,
          .top_k = 2,
          .num_words = 3,
          .active = RankMask::first(num_ranks),
          .transport = Transport::kCounted};
}

FakeGroup counted_group(int num_ranks) {
  return FakeGroup(num_ranks, 4, 64, 64, 0, 0, all_regions(4, 2, 16));
}

TEST(CountedStepTest, StepsAcrossTheWrapOfTheCountersAreExact) {
  std::mt19937 random(5);
  FakeGroup group = counted_group(3);
  for (int rank = 0; rank < 3; ++rank) {
    for (int src = 0; src < 3; ++src) {
      const std::uint64_t start = ~std::uint64_t{0} - 40;
      *counted_line(group.workspace(rank), rank, src) = {start, start, {}};
      *counted_account(group.workspace(rank), src) = {start, start};
    }
  }
  const FakeStep step = counted_step(3);
  for (std::uint32_t step_idx = 0; step_idx < 10; ++step_idx) {
    FakeWorld world{group, step, random_tokens(3, step, step_idx, random)};
    ASSERT_NO_FATAL_FAILURE(run_step(world, random));
  }
  EXPECT_LT(counted_account(group.workspace(0), 1)->dispatch_bytes, 1u << 20);
  for (int rank = 0; rank < 3; ++rank) {
    for (int src = 0; src < 3; ++src) {
      const CountedLine* line = counted_line(group.workspace(rank), rank, src);
      const CountedAccount* account = counted_account(group.workspace(rank), src);
      EXPECT_EQ(line->dispatch_bytes, account->dispatch_bytes);
      EXPECT_EQ(line->combine_bytes, account->combine_bytes);
    }
  }
}

// A rank whose line came but not all of its bytes is named.
TEST(CountedStepTest, MissingBytesNameTheirRank) {
  FakeGroup group = counted_group(3);
  const FakeStep step = counted_step(3);
  FakeWorld world{group, step, std::vector<FakeTokens>(3, FakeTokens::make(1, 0, {{0, 3}}, 3))};
  FakeGroup::run({1, 2, 0}, [&](int rank, FakeMemory& memory) {
    if (rank == 0) counted_line(group.workspace(0), 0, 2)->dispatch_bytes -= 4;
    world.dispatch(rank, memory);
  });
  RankMask missing;
  missing.set(2);
  EXPECT_EQ(world.statuses[0].result, StepResult::kTimeout);
  EXPECT_EQ(world.statuses[0].phase, Phase::kDispatch);
  EXPECT_EQ(world.statuses[0].missing, missing);
  EXPECT_TRUE(world.statuses[1].ok());
}

TEST(CountedStepTest, MissingPeersEndTheCombineWithATimeout) {
  FakeGroup group = counted_group(3);
  const FakeStep step = counted_step(3);
  FakeWorld world{group, step, std::vector<FakeTokens>(3, FakeTokens::make(1, 0, {{0, 3}}, 3))};
  FakeGroup::run({1, 2, 0}, [&](int rank, FakeMemory& memory) {
    ASSERT_TRUE(world.dispatch(rank, memory).ok());
  });
  FakeGroup::run({1, 2}, [&](int rank, FakeMemory& memory) { world.combine(rank, memory); });
  RankMask missing;
  missing.set(0);
  for (const int rank : {1, 2}) {
    EXPECT_EQ(world.statuses[rank].result, StepResult::kTimeout);
    EXPECT_EQ(world.statuses[rank].missing, missing);
  }
}

TEST(CountedStepTest, RowsMustBeMultiplesOf16Bytes) {
  FakeGroup group = counted_group(2);
  FakeStep step = counted_step(2);
  for (const int words : {3, 4, 8}) {
    for (const int top_k : {2, 4}) {
      step.num_words = words;
      step.top_k = top_k;
      const DispatchParams params = group.dispatch_params(0, step, {});
      EXPECT_EQ(fits_counted(params, 32), words % 4 == 0 && top_k == 4);
      EXPECT_FALSE(fits_counted(params, 24));
    }
  }
}

}  // namespace
}  // namespace moe_ep::protocol
