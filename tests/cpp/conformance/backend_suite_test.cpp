// The suite's fixture; see backend_suite.hpp.
#include "conformance/backend_suite.hpp"

#include <algorithm>
#include <chrono>

namespace moe_ep::testing {

// A backend that is not built instantiates nothing.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendSuite);

MoEEpCommParams BackendSuite::params_for(const GroupStep& step) {
  MoEEpCommParams params;
  params.num_experts = step.num_experts;
  params.top_k = step.top_k;
  params.max_tokens_per_rank = step.tokens_per_rank;
  params.hidden_size = step.hidden;
  params.dtype = step.dtype;
  params.invalid_expert_id = step.invalid_expert_id;
  return params;
}

std::unique_ptr<MoEEpCommunication> BackendSuite::make(int rank,
                                                       const std::shared_ptr<CommBackend>& comm,
                                                       const MoEEpCommParams& params,
                                                       SuiteConfig config) const {
  BootstrapConfig bootstrap;
  bootstrap.world_size = comm->get_size();
  bootstrap.rank = rank;
  config.comm_backend = comm;
  if (config.timeout_sec == SuiteConfig{}.timeout_sec) config.timeout_sec = kTimeoutSec;
  return backend().create(bootstrap, params, config);
}

void BackendSuite::run(int num_ranks, const RankBody& body) const {
  using std::chrono::seconds;
  EXPECT_TRUE(all_ok(
      spawn_ranks(backend().kind(), num_ranks, body,
                  {.deadline = seconds(kTimeoutSec + 40), .comm_timeout = seconds(kTimeoutSec)})));
}

void BackendSuite::run_instances(int num_ranks, const MoEEpCommParams& params,
                                 const SuiteConfig& config, const InstanceBody& body) const {
  run(num_ranks, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
    const auto instance = make(rank, comm, params, config);
    body(*instance, rank);
  });
}

void BackendSuite::run_steps(const std::vector<GroupStep>& steps, const StepOptions& options,
                             const SuiteConfig& config) const {
  MoEEpCommParams params = params_for(steps.front());
  for (const GroupStep& step : steps) {
    params.max_tokens_per_rank = std::max(params.max_tokens_per_rank, step.tokens_per_rank);
  }
  run_instances(steps.front().num_ranks, params, config, [&](MoEEpCommunication& comm, int) {
    for (const GroupStep& step : steps)
      run_step(backend(), comm, step, options);
  });
}

}  // namespace moe_ep::testing
