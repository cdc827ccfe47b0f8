// Fence transport: rows are plain stores, one release flag a peer and phase says that they are
// there.
//
//   dispatch  every row and the line's other words, then line.dispatch_flag = epoch (release).
//             The owner acquires the flag before it reads any of them.
//   combine   every row of the own combine region, then line.combine_flag = epoch (release) in
//   every
//             active peer. A peer acquires the flag before it gets rows.
//
// Why one set of receive rows is enough: rank A writes B's dispatch rows of step e + 1 only after
// it finished combine e, for which it acquired B's combine flag e, which B released after its last
// use of the dispatch rows of step e. Why one combine region is enough: B writes combine rows of
// step e + 1 only after it acquired every peer's dispatch flag e + 1, which a peer releases after
// it got its last row of combine e. Both need that a rank waits for all active peers in both
// phases, also for those it exchanges no rows with.
//
// Needs nothing of the payload: moves bytes.
#pragma once

#include <cstdint>

#include "protocol/concepts.hpp"
#include "protocol/epoch.hpp"
#include "protocol/layout.hpp"

namespace moe_ep::protocol {

struct FenceTransport {
  static constexpr Transport kTransport = Transport::kFence;

  // Row r of a source's block holds its r-th token that came here: compact placement.
  static constexpr bool kCompact = true;

  template <Memory M>
  static MOE_EP_HD void put_row(M& memory, std::byte* to, const std::byte* from,
                                std::int64_t bytes) {
    memory.copy_row(to, from, bytes);
  }

  // Pairs with dispatch_arrived. The caller wrote rows and line before, on this thread or on
  // threads it has synchronised with.
  template <Memory M>
  static MOE_EP_HD void publish_dispatch(M& memory, PeerLine* line, Epoch epoch) {
    memory.store_release(&line->dispatch_flag, epoch);
  }
  template <Memory M>
  static MOE_EP_HD bool dispatch_arrived(M& memory, const PeerLine* line, Epoch epoch) {
    return has_reached(memory.load_acquire(&line->dispatch_flag), epoch);
  }

  // Pairs with combine_arrived.
  template <Memory M>
  static MOE_EP_HD void publish_combine(M& memory, PeerLine* line, Epoch epoch) {
    memory.store_release(&line->combine_flag, epoch);
  }
  template <Memory M>
  static MOE_EP_HD bool combine_arrived(M& memory, const PeerLine* line, Epoch epoch) {
    return has_reached(memory.load_acquire(&line->combine_flag), epoch);
  }
};

}  // namespace moe_ep::protocol
