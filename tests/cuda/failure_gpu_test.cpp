// Steps that cannot go well: they end in time, say why, and leave the process as it was.
#include <gtest/gtest.h>

#include <chrono>

#include "cuda/kernels/dispatch.hpp"
#include "cuda/kernels/maintenance.hpp"
#include "gpu_clock.hpp"
#include "step.hpp"

namespace moe_ep::testing {
namespace {

using protocol::StepResult;

constexpr int kTokens = 16;

// Ways to combine: rows pulled or pushed after a fence dispatch, or a Lamport step.
enum class Way { kPull, kPush, kLamport };

class FailureGpuTest : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (num_gpus() < 1) GTEST_SKIP() << "needs a GPU, got none";
    protocol::TransportRegions regions;
    regions.lamport = {.max_tokens = kTokens, .top_k = 2, .value_bytes = 32, .combine_bytes = 32};
    const auto layout = protocol::WorkspaceLayout::make(
        3, kTokens, 0, protocol::WorkspaceLayout::required_bytes(3, kTokens, 0, 512, 256, regions),
        regions);
    rig_ = std::make_unique<Rig>(std::vector<int>{0, 0, 0}, layout);
  }
  StepShape shape(double timeout_sec) const {
    StepShape shape;
    if (GetParam() == Way::kLamport) shape.transport = Transport::kLamport;
    shape.tokens_per_rank = kTokens;
    shape.active = RankMask::first(3);
    shape.timeout_ns = static_cast<std::uint64_t>(timeout_sec * 1e9);
    return shape;
  }
  void choose_way(Step& step) const {
    for (StepRank& rank : step.ranks()) {
      rank.tuning.push_bytes = GetParam() == Way::kPush ? 0 : -1;
      rank.tuning.min_push_sms = 1;
    }
  }
  // The context is alive, and after a reset steps are exact again.
  void expect_usable() {
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_NO_THROW(DeviceBuffer(0, 1 << 20));
    rig_->reset();
    Step step(*rig_, shape(20), random_);
    choose_way(step);
    step.run();
    rig_->synchronize();
    EXPECT_NO_THROW(step.check());
  }

  std::unique_ptr<Rig> rig_;
  Random random_{1};
};

RankMask only(int rank) {
  RankMask mask;
  mask.set(rank);
  return mask;
}

TEST_P(FailureGpuTest, ARankThatDoesNotDispatchIsNamed) {
  Step step(*rig_, shape(0.3), random_);
  const auto start = GpuClock::now();
  for (const int rank : {0, 1}) {
    step.dispatch(rank);
    step.combine(rank);  // ends at once
  }
  rig_->synchronize();
  const auto took = GpuClock::now() - start;
  EXPECT_GT(took, std::chrono::milliseconds(290));
  EXPECT_LT(took, std::chrono::milliseconds(1300));
  for (const int rank : {0, 1}) {
    const protocol::StepStatus status = rig_->status(rank);
    EXPECT_EQ(status.result, StepResult::kTimeout);
    EXPECT_EQ(status.phase, Phase::kDispatch);
    EXPECT_EQ(status.missing, only(2));
    EXPECT_EQ(status.epoch, 1u);
  }
  EXPECT_TRUE(rig_->status(2).ok());
  expect_usable();
}

TEST_P(FailureGpuTest, ARankThatDoesNotCombineIsNamed) {
  Step step(*rig_, shape(0.3), random_);
  choose_way(step);
  for (const int rank : {0, 1, 2})
    step.dispatch(rank);
  for (const int rank : {0, 1})
    step.combine(rank);
  rig_->synchronize();
  for (const int rank : {0, 1}) {
    const protocol::StepStatus status = rig_->status(rank);
    EXPECT_EQ(status.result, StepResult::kTimeout);
    EXPECT_EQ(status.phase, Phase::kCombine);
    EXPECT_EQ(status.missing, only(2));
  }
  // Everything later ends at once.
  const auto start = GpuClock::now();
  for (const int rank : {0, 1}) {
    step.dispatch(rank);
    step.combine(rank);
  }
  for (const int rank : {0, 1})
    cudaStreamSynchronize(rig_->use(rank).stream);
  EXPECT_LT(GpuClock::now() - start, std::chrono::milliseconds(200));
  expect_usable();
}

std::string name_of(const ::testing::TestParamInfo<Way>& way) {
  constexpr const char* kNames[] = {"Pull", "Push", "Lamport"};
  return kNames[static_cast<int>(way.param)];
}

INSTANTIATE_TEST_SUITE_P(Ways, FailureGpuTest,
                         ::testing::Values(Way::kPull, Way::kPush, Way::kLamport), name_of);

TEST_P(FailureGpuTest, ADifferentSignatureIsNamedWithBothValues) {
  Step step(*rig_, shape(0.3), random_);
  step.ranks()[1].dispatch.signature.fields[protocol::kNumExperts] = 99;
  for (const int rank : {0, 1, 2})
    step.dispatch(rank);
  rig_->synchronize();
  for (const int rank : {0, 1, 2}) {
    const protocol::StepStatus status = rig_->status(rank);
    EXPECT_EQ(status.result, StepResult::kMismatch);
    EXPECT_EQ(status.field, protocol::kNumExperts);
    EXPECT_EQ(status.peer, rank == 1 ? 0 : 1);
    EXPECT_EQ(status.want, rank == 1 ? 99 : 8);
    EXPECT_EQ(status.got, rank == 1 ? 8 : 99);
  }
  expect_usable();
}

TEST_P(FailureGpuTest, ADifferentCombineRowIsNamedWithBothValues) {
  Step step(*rig_, shape(0.3), random_);
  for (const int rank : {0, 1, 2})
    step.dispatch(rank);
  step.ranks()[2].combine.format = protocol::kCombineFp16;
  for (const int rank : {0, 1, 2})
    step.combine(rank);
  rig_->synchronize();
  const protocol::StepStatus status = rig_->status(0);
  EXPECT_EQ(status.result, StepResult::kMismatch);
  EXPECT_EQ(status.phase, Phase::kCombine);
  EXPECT_EQ(status.peer, 2);
  EXPECT_EQ(status.field, static_cast<int>(protocol::CombineField::kFormat));
  EXPECT_EQ(status.want, protocol::kCombineBf16);
  EXPECT_EQ(status.got, protocol::kCombineFp16);
  expect_usable();
}

TEST_P(FailureGpuTest, AnAbandonedStepEndsAtOnceAndSaysNothing) {
  Step step(*rig_, shape(30), random_);
  cudaStream_t side = nullptr;
  MOE_EP_CUDA_CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  const auto start = GpuClock::now();
  step.dispatch(0);
  MOE_EP_CUDA_CHECK(cuda::launch_abandon((*rig_)[0].workspace, side));
  MOE_EP_CUDA_CHECK(cudaStreamSynchronize((*rig_)[0].stream));
  EXPECT_LT(GpuClock::now() - start, std::chrono::seconds(5));
  EXPECT_TRUE(rig_->status(0).ok());
  cudaStreamDestroy(side);
  expect_usable();
}

// A peer, or a user who writes to a view, cannot lead a kernel out of the memory.
TEST_P(FailureGpuTest, RubbishInTheOwnListsStaysWithinTheSlices) {
  for (int round = 0; round < 6; ++round) {
    Step step(*rig_, shape(0.05), random_);
    choose_way(step);
    for (const int rank : {0, 1, 2})
      step.dispatch(rank);
    rig_->synchronize();
    for (const int rank : {0, 1, 2}) {
      const protocol::Workspace& workspace = rig_->use(rank).workspace;
      const auto spoil = [&](void* words, int count) {
        std::vector<std::int32_t> rubbish(static_cast<std::size_t>(count));
        MOE_EP_CUDA_CHECK(
            cudaMemcpy(rubbish.data(), words, 4 * rubbish.size(), cudaMemcpyDeviceToHost));
        for (std::int32_t& word : rubbish) {
          if (pick(random_, 0, 3) == 0) word = static_cast<std::int32_t>(random_());
        }
        MOE_EP_CUDA_CHECK(
            cudaMemcpy(words, rubbish.data(), 4 * rubbish.size(), cudaMemcpyHostToDevice));
      };
      spoil(workspace.recv_counts(), 3);
      spoil(workspace.send_counts(), 3);
      spoil(workspace.hops(0), 2 * 3 * kTokens);
    }
    for (const int rank : {0, 1, 2})
      step.combine(rank);
    rig_->synchronize();  // a sum of whatever, or a failure
    expect_usable();
  }
}

TEST_P(FailureGpuTest, IdsOfRowsWithoutATokenCanBeMarkedLater) {
  if (GetParam() == Way::kLamport) GTEST_SKIP() << "ids of Lamport steps are marked already";
  StepShape plain = shape(20);
  plain.ids_converted = false;
  plain.wide_ids = false;
  Step step(*rig_, plain, random_);
  for (const int rank : {0, 1, 2})
    step.dispatch(rank);
  for (const int rank : {0, 1, 2}) {
    RigRank& place = rig_->use(rank);
    auto& params = step.ranks()[static_cast<std::size_t>(rank)].dispatch;
    auto* ids = reinterpret_cast<std::int32_t*>(params.row(rank, 1, 0, 0));
    MOE_EP_CUDA_CHECK(cuda::launch_sanitize(place.workspace, ids, kTokens, plain.top_k, -77,
                                            place.options, place.stream));
    std::vector<std::int32_t> got(static_cast<std::size_t>(3 * kTokens * plain.top_k));
    std::vector<std::int32_t> counts(3);
    MOE_EP_CUDA_CHECK(cudaStreamSynchronize(place.stream));
    MOE_EP_CUDA_CHECK(cudaMemcpy(got.data(), ids, 4 * got.size(), cudaMemcpyDeviceToHost));
    MOE_EP_CUDA_CHECK(
        cudaMemcpy(counts.data(), place.workspace.recv_counts(), 12, cudaMemcpyDeviceToHost));
    for (int src = 0; src < 3; ++src) {
      for (int row = counts[static_cast<std::size_t>(src)]; row < kTokens; ++row) {
        for (int k = 0; k < plain.top_k; ++k) {
          EXPECT_EQ(got[static_cast<std::size_t>((src * kTokens + row) * plain.top_k + k)], -77);
        }
      }
    }
  }
}

}  // namespace
}  // namespace moe_ep::testing
