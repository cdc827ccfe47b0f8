// StepFailure: a step that ended early, kept until recover() and raised by every call until then.
#pragma once

#include <string>
#include <vector>

#include "protocol/wait.hpp"

namespace moe_ep::detail {

struct StepFailure {
  std::string operation;
  int rank = 0;  // that noticed
  protocol::StepStatus status;
  std::uint64_t timeout_ns = 0;
  std::vector<std::string> payload_names;  // of the dispatch, for messages

  // Throws the error that the status stands for.
  [[noreturn]] void raise() const;
};

}  // namespace moe_ep::detail
