// What orders the words of Lamport steps on devices (docs/protocol.md): tags are relaxed, and a
// rank releases one edge at the start of a dispatch, which its peers acquire in the step's combine.
//
// The protocol's own text runs between raising and awaiting the edge. Where a kernel leaves the
// order to its blocks, the weakest is taken: the edge is raised before anything else of the
// dispatch and awaited after everything else of the combine, and the combine tag comes first. A
// kernel's end orders nothing but a rank's own accesses, which program order does here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "protocol/epoch.hpp"
#include "protocol/transport/lamport_combine.hpp"
#include "simulation/sim_memory.hpp"
#include "support/fake_group.hpp"

namespace moe_ep::testing::simulation {

enum class DeviceFault : std::uint8_t {
  kNone,
  kEdgeRaisedRelaxed,
  kEdgeAwaitedRelaxed,
  kEdgeNotAwaited,
  kOneBankOfCombineRows,
  kOneBankOfDispatchRows,
  kOneBankOfTags,
};

using RelaxedTags = SimMemory<Plant::kRelaxedTags>;

// Own rows, which peers see in fence steps only, are there at once: other results are, too.
class DeviceMemory : public RelaxedTags {
 public:
  explicit DeviceMemory(const RelaxedTags& memory) : RelaxedTags(memory) {}
  void copy_row(std::byte* to, const std::byte* from, std::int64_t bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
};
static_assert(protocol::TagMemory<DeviceMemory>);

template <DeviceFault Fault = DeviceFault::kNone>
struct DeviceScheme {
  // What a device's reset sets besides what hosts know. An old edge must not pass for new.
  static void reset(const protocol::Workspace& workspace, protocol::Epoch epoch) {
    for (int peer = 0; peer < workspace.layout.num_ranks; ++peer) {
      protocol::PeerLine* line = workspace.line(workspace.rank, peer);
      line->done_flag = epoch;
      line->edge_flag = epoch;
    }
  }

  static protocol::StepStatus dispatch(RelaxedTags& relaxed, protocol::DispatchParams params) {
    DeviceMemory memory(relaxed);
    const protocol::Epoch epoch = protocol::next_epoch(params.workspace.header()->epoch);
    plant_bank(params.workspace.layout.lamport, epoch);
    raise_edge(memory, params, epoch);
    FakeCoop coop;
    protocol::StepStatus shared;
    return protocol::lamport_dispatch(coop, memory, params, shared);
  }

  template <class Rows>
  static protocol::StepStatus combine(RelaxedTags& relaxed, Rows& rows,
                                      protocol::CombineParams params) {
    DeviceMemory memory(relaxed);
    const protocol::Epoch epoch = params.workspace.header()->epoch;
    plant_bank(params.workspace.layout.lamport, epoch);
    // The protocol puts them once more. Other blocks may start much later.
    protocol::put_combine_tags(memory, params, protocol::LamportRules::bank(epoch), epoch);
    memory.linger();
    FakeCoop coop;
    protocol::StepStatus status;
    protocol::lamport_combine(coop, memory, rows, params, status);
    if (status.ok() && Fault != DeviceFault::kEdgeNotAwaited) {
      status.missing = await_edges(memory, params, epoch);
      if (!status.missing.empty()) status.result = protocol::StepResult::kTimeout;
    }
    return status;
  }

  // Before a fence dispatch that follows a Lamport step: everybody tells that it is past the step.
  // No plant needs it: experts of a run keep their answers outside the workspace.
  static protocol::StepStatus drain(RelaxedTags& memory, const protocol::DispatchParams& params) {
    const protocol::Workspace& workspace = params.workspace;
    const protocol::Epoch last = workspace.header()->epoch;
    const RankMask peers = protocol::peers_of(workspace, params.active);
    peers.for_each([&](int peer) {
      memory.store_release(&workspace.line(peer, workspace.rank)->done_flag, last);
    });
    protocol::StepStatus status;
    status.missing =
        protocol::await_peers(memory, peers, memory.now_ns() + params.timeout_ns, [&](int peer) {
          const auto* flag = &workspace.line(workspace.rank, peer)->done_flag;
          return protocol::has_reached(memory.load_acquire(flag), last);
        });
    if (!status.missing.empty()) status.result = protocol::StepResult::kTimeout;
    return status;
  }

 private:
  static void raise_edge(DeviceMemory& memory, const protocol::DispatchParams& params,
                         protocol::Epoch epoch) {
    const protocol::Workspace& workspace = params.workspace;
    protocol::peers_of(workspace, params.active).for_each([&](int peer) {
      auto* flag = &workspace.line(peer, workspace.rank)->edge_flag;
      if (Fault == DeviceFault::kEdgeRaisedRelaxed) {
        memory.store_relaxed(flag, epoch);
      } else {
        memory.store_release(flag, epoch);
      }
    });
  }

  // Returns the peers whose edge did not come.
  static RankMask await_edges(DeviceMemory& memory, const protocol::CombineParams& params,
                              protocol::Epoch epoch) {
    const protocol::Workspace& workspace = params.workspace;
    const RankMask peers = protocol::peers_of(workspace, params.active);
    return protocol::await_peers(memory, peers, memory.now_ns() + params.timeout_ns, [&](int peer) {
      const auto* flag = &workspace.line(workspace.rank, peer)->edge_flag;
      const protocol::Epoch raised = Fault == DeviceFault::kEdgeAwaitedRelaxed
                                         ? memory.load_relaxed(flag)
                                         : memory.load_acquire(flag);
      return raised - epoch < 2;  // a peer may be one step ahead
    });
  }

  // Lays the second bank of what the fault names over the first.
  static void plant_bank(protocol::LamportLayout& layout, protocol::Epoch epoch) {
    if (protocol::LamportRules::bank(epoch) == 0) return;
    const std::int64_t rows = std::int64_t{layout.num_ranks} * layout.max_tokens;
    if (Fault == DeviceFault::kOneBankOfCombineRows) layout.combine -= rows * layout.combine_stride;
    if (Fault == DeviceFault::kOneBankOfDispatchRows) layout.rows -= rows * layout.row_stride;
    if (Fault == DeviceFault::kOneBankOfTags) layout.tags -= rows * layout.tag_stride;
  }
};

}  // namespace moe_ep::testing::simulation
