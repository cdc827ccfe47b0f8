// The behaviour of a backend, written once.
//
// Bodies are TEST_P(BackendSuite, ...) in the *_test.cpp files beside this one; they see a backend
// through SuiteBackend only. A backend instantiates all of them with a few lines:
//
//   INSTANTIATE_TEST_SUITE_P(Threads, BackendSuite, ::testing::Values(&backend), suite_name);
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <moe_ep/communication.hpp>

#include "support/step_runner.hpp"

namespace moe_ep::testing {

inline std::string suite_name(const ::testing::TestParamInfo<const SuiteBackend*>& info) {
  return info.param->name();
}

class BackendSuite : public ::testing::TestWithParam<const SuiteBackend*> {
 protected:
  // Waits within a test end well before the test's own deadline.
  static constexpr int kTimeoutSec = 60;

  const SuiteBackend& backend() const { return *GetParam(); }
  bool in_threads() const { return backend().kind() == RankKind::kThreads; }

  // Sizes of an instance that can carry `step`.
  static MoEEpCommParams params_for(const GroupStep& step);

  std::unique_ptr<MoEEpCommunication> make(int rank, const std::shared_ptr<CommBackend>& comm,
                                           const MoEEpCommParams& params,
                                           SuiteConfig config = {}) const;

  // Runs `body(rank, comm backend)` on every rank.
  void run(int num_ranks, const RankBody& body) const;

  // Makes an instance on every rank and runs `body(instance, rank)`.
  using InstanceBody = std::function<void(MoEEpCommunication& comm, int rank)>;
  void run_instances(int num_ranks, const MoEEpCommParams& params, const SuiteConfig& config,
                     const InstanceBody& body) const;

  // One instance, these steps.
  void run_steps(const std::vector<GroupStep>& steps, const StepOptions& options = {},
                 const SuiteConfig& config = {}) const;
};

}  // namespace moe_ep::testing
