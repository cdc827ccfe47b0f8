// Which workspaces this process has, so that instances of one group and layout can share them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <moe_ep/workspace.hpp>

#include "backend/backend.hpp"
#include "core/step_failure.hpp"
#include "protocol/failure_record.hpp"
#include "protocol/step.hpp"

namespace moe_ep::detail {

// A round that destroy() cut short: who took part, and on which transport.
struct AbandonedRound {
  RankMask active;
  Transport transport = Transport::kFence;
};

// One rank's workspace and the state that instances on it have in common. Belongs to the thread
// that drives this rank.
struct SharedWorkspace {
  std::shared_ptr<SymmetricWorkspace> memory;
  protocol::WorkspaceLayout layout;
  std::shared_ptr<CommBackend> comm;  // of the ranks that are there: all, or whom recover() named
  const void* open_round = nullptr;   // the instance whose round is open
  std::optional<AbandonedRound> abandoned;
  std::optional<StepFailure> failure;  // refuses steps until recover()
  bool torn =
      false;  // a recover() has ended early: peers' slices may be missing until the next one
  std::shared_ptr<protocol::FailureRecord> record;  // devices: where enqueued steps tell of theirs
  // Devices: of destroyed instances. Their steps may still read what these own.
  std::vector<std::unique_ptr<Backend>> retired;

  // Fresh from a reset of the slice on every rank.
  void start_over() {
    open_round = nullptr;
    abandoned.reset();
    failure.reset();
    torn = false;
  }

  protocol::Workspace view() const {
    return {memory->base(), static_cast<std::int64_t>(memory->slice_stride()), layout,
            memory->rank()};
  }
};

// What makes two instances share: group, rank, device and layout.
struct WorkspaceKey {
  const void* group = nullptr;
  int rank = 0;
  std::string layout;  // where, and what

  auto operator<=>(const WorkspaceKey&) const = default;
};

// The living workspace of `key`, if there is one.
std::shared_ptr<SharedWorkspace> find_workspace(const WorkspaceKey& key);
// Makes `workspace` findable as long as it lives.
void remember_workspace(const WorkspaceKey& key, const std::shared_ptr<SharedWorkspace>& workspace);

}  // namespace moe_ep::detail
