// Backend: who executes a step. The one virtual interface between the core and a kind of memory.
#pragma once

#include <memory>

#include <moe_ep/tensor.hpp>

#include "protocol/output.hpp"
#include "protocol/step.hpp"
#include "protocol/wait.hpp"

namespace moe_ep {

class Backend {
 public:
  virtual ~Backend() = default;
  // Runs one phase of a step to its end. Errors are data: the status says how it ended.
  virtual protocol::StepStatus dispatch(const protocol::DispatchParams& params) = 0;
  virtual protocol::StepStatus combine(const protocol::CombineParams& params,
                                       const CombineOutput& output) = 0;
};

// @param num_threads worker threads, at least 1; more than one start at the first step
std::unique_ptr<Backend> make_host_backend(int num_threads);

}  // namespace moe_ep
