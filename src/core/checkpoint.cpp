// Giving the workspace's memory back for a process checkpoint, and taking new memory after it.

#include "comm/agree.hpp"
#include "core/communication_state.hpp"
#include "core/message.hpp"

namespace moe_ep::detail {
namespace {

SharedWorkspace& between_rounds(const std::shared_ptr<SharedWorkspace>& workspace,
                                const char* operation) {
  if (workspace == nullptr) {
    throw std::logic_error(concat(operation,
                                  ": the instance must not be destroyed, got a call "
                                  "after destroy()"));
  }
  if (workspace->open_round != nullptr) {
    throw std::logic_error(concat(operation, ": no round may be open, got one"));
  }
  return *workspace;
}

}  // namespace

void CommunicationState::checkpoint_prepare() {
  SharedWorkspace& workspace = between_rounds(workspace_, "checkpoint_prepare");
  if (workspace.memory->mapped()) workspace.memory->checkpoint_prepare(*workspace.comm);
}

void CommunicationState::checkpoint_restore(std::shared_ptr<CommBackend> comm) {
  const char* op = "checkpoint_restore";
  SharedWorkspace& workspace = between_rounds(workspace_, op);
  if (workspace.memory->mapped()) return;
  require(comm != nullptr, op, ": comm_backend must be given, got none");
  const CommBackend& present = *workspace.comm;
  if (comm->get_size() != present.get_size() || comm->get_rank() != present.get_rank()) {
    throw std::logic_error(concat(op, ": comm_backend must have rank ", present.get_rank(), " of ",
                                  present.get_size(), ", got rank ", comm->get_rank(), " of ",
                                  comm->get_size()));
  }
  workspace.memory->checkpoint_restore(*comm);
  const auto failure = failure_of([&] { backend_->reset(workspace.view(), 0); });
  try {
    gather_outcomes(*comm, op, failure);  // everybody is armed
  } catch (...) {
    workspace.memory->discard();  // else this rank would take part in no further attempt
    throw;
  }
  workspace.start_over();
  workspace.comm = std::move(comm);
}

}  // namespace moe_ep::detail
