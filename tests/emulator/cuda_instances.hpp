// Instances of NVLinkOneSidedAlltoAll on the emulated machine, over both transports.
#pragma once

#include <memory>

#include <gtest/gtest.h>

#include "cuda_suite_backend.hpp"

namespace moe_ep::testing {

class CudaInstancesTest : public ::testing::TestWithParam<const CudaSuiteBackend*> {
 protected:
  const CudaSuiteBackend& backend() const { return *GetParam(); }
  static std::unique_ptr<MoEEpCommunication> make(const SuiteBackend& backend, int rank,
                                                  const std::shared_ptr<CommBackend>& comm,
                                                  const GroupStep& step, int timeout_sec = 60) {
    SuiteConfig config;
    config.comm_backend = comm;
    config.enable_rank_mask = true;
    config.timeout_sec = timeout_sec;
    return backend.create({.world_size = step.num_ranks, .rank = rank}, params_for(step), config);
  }
  static MoEEpCommParams params_for(const GroupStep& step) {
    return {.num_experts = step.num_experts,
            .top_k = step.top_k,
            .max_tokens_per_rank = step.tokens_per_rank,
            .hidden_size = step.hidden,
            .dtype = step.dtype};
  }
  static void run(int num_ranks, const RankBody& body) {
    EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, num_ranks, body)));
  }
};

}  // namespace moe_ep::testing
