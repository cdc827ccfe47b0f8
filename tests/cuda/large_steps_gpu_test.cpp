// Steps as models take them: thousands of tokens, long rows, many launches.
#include <gtest/gtest.h>

#include "step.hpp"

namespace moe_ep::testing {
namespace {

StepShape model_shape(int num_ranks, int tokens) {
  StepShape shape;
  shape.tokens_per_rank = tokens;
  shape.top_k = 8;
  shape.num_experts = 256;
  shape.elements = 7168;
  shape.hidden_bytes = 2 * 7168;
  shape.weight_bytes = 32;
  shape.active = RankMask::first(num_ranks);
  return shape;
}

protocol::WorkspaceLayout layout_of(const StepShape& shape, int num_ranks) {
  return protocol::WorkspaceLayout::make(
      num_ranks, shape.tokens_per_rank, 0,
      protocol::WorkspaceLayout::required_bytes(num_ranks, shape.tokens_per_rank, 0,
                                                shape.dispatch_row_bytes(),
                                                shape.combine_row_bytes()));
}

void run_model_steps(const std::vector<int>& devices, const StepShape& shape, int num_steps) {
  Random random(3);
  const int num_ranks = static_cast<int>(devices.size());
  Rig rig(devices, layout_of(shape, num_ranks));
  Step step(rig, shape, random);
  for (int index = 0; index < num_steps; ++index) {
    if (index > 0) step.refill(random);
    step.run();
    rig.synchronize();
    ASSERT_NO_THROW(step.check());
  }
}

TEST(LargeStepsGpuTest, PushedRowsOfOneGpuAreExact) {
  if (num_gpus() < 1) GTEST_SKIP() << "needs a GPU, got none";
  run_model_steps({0, 0}, model_shape(2, 700), 2);
}

TEST(LargeStepsGpuTest, PushedRowsOfTwoGpusAreExact) {
  if (num_gpus() < 2) GTEST_SKIP() << "needs 2 GPUs, got " << num_gpus();
  run_model_steps({0, 1}, model_shape(2, 1500), 2);
}

// FP8 rows go out and BF16 rows come back: not all of them find room to land.
TEST(LargeStepsGpuTest, RowsWithoutRoomToLandArePulled) {
  if (num_gpus() < 1) GTEST_SKIP() << "needs a GPU, got none";
  StepShape shape = model_shape(4, 300);
  shape.hidden_bytes = 7168;
  shape.extra_bytes = {224};
  run_model_steps({0, 0, 0, 0}, shape, 2);
}

TEST(LargeStepsGpuTest, Fp8RowsOfTwoGpusAreExact) {
  if (num_gpus() < 2) GTEST_SKIP() << "needs 2 GPUs, got " << num_gpus();
  StepShape shape = model_shape(2, 900);
  shape.hidden_bytes = 7168;
  shape.fp8_wire = true;
  run_model_steps({0, 1}, shape, 2);
}

}  // namespace
}  // namespace moe_ep::testing
