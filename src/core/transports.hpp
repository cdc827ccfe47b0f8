// Which transports an instance's steps may take, and which one a step takes. Both follow from
// values that are equal on every rank.
#pragma once

#include <string>

#include <moe_ep/communication.hpp>

#include "core/options.hpp"
#include "protocol/step.hpp"

namespace moe_ep::detail {

// Bytes of a rank's slice that landing rows of Lamport steps may take unless lamport_max_tokens is
// given. docs/protocol.md says why.
inline constexpr std::int64_t kLamportBudgetBytes = 128 << 20;

// Why no step of these params and options can take the Lamport transport; empty if some can.
std::string lamport_obstacle(const MoEEpCommParams& params, const Options& options);

// The slice of an instance, with the regions of every transport that is enabled.
protocol::WorkspaceLayout make_layout(int num_ranks, const MoEEpCommParams& params,
                                      const Options& options);

// What makes two layouts the same.
std::string layout_key(const protocol::WorkspaceLayout& layout);

// Logs why a transport that was asked for is off.
void warn_of_obstacles(const MoEEpCommParams& params, const Options& options);

// The transport of a step that is described but for it: Lamport, else counted, else fence.
Transport choose_transport(const MoEEpCommParams& params, const protocol::DispatchParams& step,
                           const DispatchInputs& inputs);

}  // namespace moe_ep::detail
