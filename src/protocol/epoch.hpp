// Epochs number the steps of a workspace: 32 bits, wrapping.
//
// A rank's epoch lives in its own slice (SliceHeader::epoch), so that a replayed launch finds it in
// memory. Step e is dispatch and combine with epoch e. Flags are set to the epoch of the step they
// announce and are never cleared: a flag has arrived for step e when it is not before e, compared
// with the wrap in mind. A peer is at most one step ahead of or behind a rank it exchanges flags
// with, far less than the half range that the comparison can tell apart.
#pragma once

#include <cstdint>

#include <moe_ep/types.hpp>

namespace moe_ep::protocol {

using Epoch = std::uint32_t;

MOE_EP_HD constexpr Epoch next_epoch(Epoch epoch) {
  return epoch + 1;
}

MOE_EP_HD constexpr bool has_reached(Epoch flag, Epoch epoch) {
  return static_cast<std::int32_t>(flag - epoch) >= 0;
}

}  // namespace moe_ep::protocol
