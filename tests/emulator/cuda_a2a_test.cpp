// The stateless family on tensors of emulated GPUs.
#include <moe_ep/a2a.hpp>

#include <gmock/gmock.h>

#include "cuda_suite_backend.hpp"
#include "support/a2a_world.hpp"
#include "support/resources.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::HasSubstr;

// An A2aWorld whose memory is a GPU's: on one machine they are the same.
class CudaWorld {
 public:
  template <class... Sizes>
  explicit CudaWorld(int num_ranks, Sizes... sizes) : world_(num_ranks, sizes...) {}

  using Body = std::function<void(int rank, const A2aMetainfo& metainfo)>;
  // Two ranks a GPU.
  void run(const Body& body) const {
    EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, world_.num_ranks,
                                   [&](int rank, const std::shared_ptr<CommBackend>& comm) {
                                     MOE_EP_CUDA_CHECK(cudaSetDevice(rank / 2 % 4));
                                     TensorView workspace = world_.workspace();
                                     workspace.device = kCudaFence.device();
                                     const A2aMetainfo metainfo = moe_a2a_initialize(
                                         workspace, rank, world_.num_ranks, world_.max_num_tokens,
                                         world_.eplb_experts, A2aBackend::kTrtllm, stream());
                                     comm->barrier();
                                     body(rank, metainfo);
                                     kCudaFence.wait();
                                   })));
  }
  const A2aWorld& host() const { return world_; }

  static std::uintptr_t stream() {
    return reinterpret_cast<std::uintptr_t>(CudaSuiteBackend::stream());
  }

 private:
  A2aWorld world_;
};

A2aStep gpu_step(const CudaWorld& world, int rank, const A2aMetainfo& metainfo,
                 const GroupStep& step, int num_extra = 0, bool wide_ids = false) {
  A2aStep runner(world.host(), rank, metainfo, step, 16, num_extra, wide_ids);
  const Device device = kCudaFence.device();
  runner.args.workspace.device = device;
  runner.args.token_selected_experts.device = device;
  for (TensorView& payload : runner.args.input_payloads)
    payload.device = device;
  runner.args.stream = CudaWorld::stream();
  return runner;
}

A2aCombineArgs gpu_combine(A2aStep& runner, bool in_workspace = false) {
  kCudaFence.wait();
  A2aCombineArgs combine = runner.combine_args(in_workspace);
  combine.payload.device = combine.output.device = kCudaFence.device();
  combine.stream = CudaWorld::stream();
  return combine;
}

void run_round(A2aStep& runner, bool in_workspace = false) {
  runner.dispatch();
  kCudaFence.wait();
  runner.check_received();
  const A2aCombineArgs combine = gpu_combine(runner, in_workspace);
  moe_a2a_combine(combine);
  kCudaFence.wait();
  runner.check_combined(combine.output);
}

TEST(CudaA2aTest, StepsAreExactForEveryRankCount) {
  for (const int num_ranks : {1, 2, 3, 5, 8}) {
    const CudaWorld world(num_ranks, 6, 16 + 4 * 3 + 36, 2 * 24);
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      for (std::uint64_t seed = 0; seed < 6; ++seed) {
        const auto tokens_per_rank = 1 + static_cast<std::int64_t>(mix(seed) % 6);
        const GroupStep step = random_step(seed, num_ranks, 2 * num_ranks, 3, 24, tokens_per_rank);
        A2aStep runner = gpu_step(world, rank, metainfo, step, static_cast<int>(seed), seed == 3);
        run_round(runner, seed % 2 == 0);
      }
    });
  }
}

TEST(CudaA2aTest, UnevenExpertCountsAreExact) {
  for (const auto& [ranks, experts] : std::vector<std::pair<int, int>>{{4, 10}, {5, 3}, {2, 1}}) {
    const std::int64_t top_k = std::min(experts, 8);
    const CudaWorld world(ranks, 9, 16 + 4 * top_k, 2 * 8);
    const GroupStep step = random_step(1, ranks, experts, top_k, 8, 9);
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      A2aStep runner = gpu_step(world, rank, metainfo, step);
      run_round(runner);
    });
  }
}

TEST(CudaA2aTest, OutputMayHaveAnotherTypeThanThePayload) {
  const GroupStep step = random_step(4, 2, 4, 3, 33, 4);
  const CudaWorld world(2, 4, 16 + 12, 33 * 4);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    for (const DType out : {kFloat32, kFloat16, kBFloat16}) {
      A2aStep runner = gpu_step(world, rank, metainfo, step);
      runner.dispatch();
      A2aCombineArgs combine = gpu_combine(runner);
      const Bytes output(static_cast<std::size_t>(combine.local_num_tokens * 33 * 4));
      combine.output = output.view(out, {combine.local_num_tokens, 33});
      combine.output.device = kCudaFence.device();
      moe_a2a_combine(combine);
      kCudaFence.wait();
      runner.check_combined(combine.output);
    }
  });
}

TEST(CudaA2aTest, MaskedRanksTakeNoPart) {
  const CudaWorld world(4, 5, 16 + 12, 16);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    for (std::uint64_t seed = 0; rank != 2 && seed < 5; ++seed) {
      GroupStep step = random_step(seed, 4, 8, 3, 8, 5);
      step.active.reset(2);
      A2aStep runner = gpu_step(world, rank, metainfo, step);
      runner.args.enable_rank_mask = true;
      runner.args.active_rank_mask = step.active;
      run_round(runner);
    }
  });
}

// Every rank learns of it, by the call after the step.
TEST(CudaA2aTest, DisagreementsAreMismatchesOnEveryRank) {
  const GroupStep step = random_step(1, 3, 6, 2, 8, 3);
  const CudaWorld world(3, 4, 16 + 8, 16);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    A2aStep runner = gpu_step(world, rank, metainfo, step);
    if (rank == 2) runner.args.num_experts = 5;
    moe_a2a_dispatch(runner.args);
    kCudaFence.wait();
    try {
      moe_a2a_dispatch(runner.args);
      ADD_FAILURE() << "rank " << rank << " noticed nothing";
    } catch (const MoEEpMismatchError& error) {
      EXPECT_THAT(error.what(), HasSubstr("moe_a2a_dispatch: num_experts"));
      EXPECT_THAT(error.what(), HasSubstr("on rank 2"));
    }
  });
}

TEST(CudaA2aTest, MissingRanksAreNamedAndAFreshStartWorks) {
  const ScopedEnv timeout("MOE_EP_TIMEOUT_SEC", "1");
  const GroupStep step = random_step(3, 3, 6, 2, 8, 3);
  const CudaWorld world(3, 4, 16 + 8, 16);
  for (const Phase phase : {Phase::kDispatch, Phase::kCombine}) {
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      A2aStep runner = gpu_step(world, rank, metainfo, step);
      if (phase == Phase::kCombine || rank != 1) runner.dispatch();
      if (rank == 1) return;
      if (phase == Phase::kCombine) moe_a2a_combine(gpu_combine(runner));
      kCudaFence.wait();
      try {
        moe_a2a_dispatch(runner.args);
        ADD_FAILURE() << "rank " << rank << " noticed nothing";
      } catch (const MoEEpTimeoutError& error) {
        EXPECT_EQ(error.ranks(), (std::vector<int>{1}));
        EXPECT_EQ(error.phase(), phase);
      }
    });
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      for (int round = 0; round < 3; ++round) {
        A2aStep runner = gpu_step(world, rank, metainfo, step);
        run_round(runner);
      }
    });
  }
}

}  // namespace
}  // namespace moe_ep::testing
