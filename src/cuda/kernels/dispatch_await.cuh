// First wait of a dispatch: until its rows may be put.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/status.cuh"
#include "cuda/kernels/dispatch_args.cuh"

namespace moe_ep::cuda {

__device__ __forceinline__ Patience patience_of(const DispatchArgs& args) {
  return {args.params.timeout_ns, &args.params.workspace.header()->failed};
}

// Every warp of every block: waits until all peers of step `last` have read what lies where this
// step's rows will: rows that were pushed to them or, after a Lamport step, their expert output.
// False, with the failure recorded, if some did not.
__device__ inline bool drain_peers(const DispatchArgs& args, Epoch last, std::uint32_t drain) {
  const protocol::Workspace& workspace = args.params.workspace;
  protocol::SliceHeader* header = workspace.header();
  if (drain == kDrainUntold && blockIdx.x == 0 && warp_id() == 0) {
    fence_sys();  // a release of what earlier kernels have read; pairs with the wait below
    for (std::int32_t peer = lane_id(); peer < workspace.layout.num_ranks; peer += kWarp) {
      if (peer == workspace.rank || !test_rank(&header->active, peer) ||
          !test_rank(args.mask(), peer)) {
        continue;
      }
      store_relaxed(&workspace.line(peer, workspace.rank)->done_flag, last);
    }
  }
  for (std::int32_t first = 0; first < workspace.layout.num_ranks; first += kWarp) {
    const std::int32_t peer = first + lane_id();
    const bool late =
        peer < workspace.layout.num_ranks && peer != workspace.rank &&
        test_rank(args.mask(), peer) && test_rank(&header->active, peer) &&
        // Pairs with the end of the peer's combine, or its store above.
        !await_flag(patience_of(args), &workspace.line(workspace.rank, peer)->done_flag, last);
    if (!__any_sync(~0u, late)) continue;
    record_late(header, args.record, Phase::kDispatch, protocol::next_epoch(last), peer, late);
    return false;
  }
  return true;
}

}  // namespace moe_ep::cuda
