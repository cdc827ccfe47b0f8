// First part of a combine: what ranks tell each other when they enter the step.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/status.cuh"
#include "cuda/kernels/combine_args.cuh"
#include "protocol/route.hpp"

namespace moe_ep::cuda {

// Copies of what a block that sends rows looks up again and again. A barrier must follow.
__device__ __forceinline__ void load_tables(CombineTables& tables, const CombineArgs& args,
                                            bool live) {
  const protocol::Workspace& workspace = args.params.workspace;
  if (threadIdx.x < kRankMaskWords) {
    tables.active.words[threadIdx.x] = live ? workspace.header()->active.words[threadIdx.x] : 0;
    tables.placed.words[threadIdx.x] = 0;
  }
  for (std::int32_t rank = static_cast<std::int32_t>(threadIdx.x);
       rank < workspace.layout.num_ranks; rank += static_cast<std::int32_t>(blockDim.x)) {
    tables.recv_counts[rank] =
        live ? protocol::num_received(workspace, args.params.tokens_per_rank, rank) : 0;
    tables.landing_in[rank] = -1;
    tables.landing_out[rank] = -1;
  }
}

// Shares the room behind the combine region out to the peers, first come first served. All blocks
// come to the same result. Ends with a barrier.
__device__ __forceinline__ void share_landing(CombineTables& tables, const CombineArgs& args,
                                              bool live) {
  const protocol::Workspace& workspace = args.params.workspace;
  const protocol::WorkspaceLayout& layout = workspace.layout;
  if (warp_id() == 0) {
    std::int64_t at = args.landing_begin;
    for (std::int32_t first = 0; first < layout.num_ranks; first += kWarp) {
      const std::int32_t own = first + lane_id();
      const std::int32_t sent = live && own < layout.num_ranks ? workspace.send_counts()[own] : 0;
      const std::int32_t rows = protocol::within_block(sent, args.params.tokens_per_rank);
      for (std::int32_t peer = first; peer < first + kWarp && peer < layout.num_ranks; ++peer) {
        const std::int64_t bytes =
            protocol::align_up(__shfl_sync(~0u, rows, peer - first) * args.wire_stride);
        if (peer == workspace.rank || at + bytes > args.landing_end) continue;
        if (lane_id() == 0) tables.landing_in[peer] = at;
        at += bytes;
      }
    }
  }
  __syncthreads();
}

// Tells every active peer that this rank has entered the step. One warp, a lane a peer.
__device__ __forceinline__ void announce(const CombineTables& tables, const CombineArgs& args,
                                         Epoch epoch, bool live) {
  const protocol::Workspace& workspace = args.params.workspace;
  const std::uint32_t code = args.code | (args.place ? 0 : protocol::kRowsPlaced);
  for (std::int32_t peer = lane_id(); peer < workspace.layout.num_ranks; peer += kWarp) {
    const bool takes_part =
        live && peer != workspace.rank && test_rank(&workspace.header()->active, peer);
    // Releases, for both words, what earlier kernels of this rank did: rows written in place, the
    // last use of the bytes where rows are to land. While the mask is on its way.
    if (live) fence_sys();
    protocol::PeerLine* line = workspace.line(peer, workspace.rank);
    const std::uint64_t word = tagged(epoch, code);
    // Pairs with the peer's loads in await_entries and await_entry.
    if (takes_part) store_relaxed(tagged_word(&line->combine_flag), word);
    if (!takes_part || !args.push) continue;
    const std::int64_t landing = tables.landing_in[peer];
    // Pairs with the peer's load in await_entries.
    store_relaxed(
        tagged_word(&line->landing_flag),
        tagged(epoch, landing < 0 ? protocol::kNoLanding
                                  : static_cast<std::uint32_t>(landing / protocol::kAlign)));
  }
}

// Awaits all active peers' entries and checks that they combine alike; keeps what they announce.
// One warp. False, with the failure recorded, if some did not come or differ.
__device__ inline bool await_entries(CombineTables& tables, const CombineArgs& args, Epoch epoch,
                                     bool live) {
  const protocol::Workspace& workspace = args.params.workspace;
  protocol::SliceHeader* header = workspace.header();
  const std::uint32_t want = args.code;
  for (std::int32_t first = 0; first < workspace.layout.num_ranks; first += kWarp) {
    const std::int32_t peer = first + lane_id();
    const bool awaited = live && peer < workspace.layout.num_ranks && peer != workspace.rank &&
                         test_rank(&header->active, peer);
    std::uint32_t code = want;
    std::uint32_t landing = protocol::kNoLanding;
    bool late = false;
    if (awaited) {
      protocol::PeerLine* line = workspace.line(workspace.rank, peer);
      // Pairs with announce, both.
      late = !await_tag(patience_of(args), &line->combine_flag, epoch, code) ||
             (args.push && (code & ~protocol::kRowsPlaced) == want &&
              !await_tag(patience_of(args), &line->landing_flag, epoch, landing));
    }
    const std::uint32_t bad =
        __ballot_sync(~0u, awaited && !late && (code & ~protocol::kRowsPlaced) != want);
    if (bad != 0) {
      if (lane_id() == __ffs(static_cast<int>(bad)) - 1) {
        code &= ~protocol::kRowsPlaced;
        const bool same_size =
            protocol::combine_code_row_bytes(code) == protocol::combine_code_row_bytes(want);
        record_difference(header, args.record, protocol::StepResult::kMismatch, Phase::kCombine,
                          epoch, peer,
                          static_cast<std::int32_t>(same_size ? protocol::CombineField::kFormat
                                                              : protocol::CombineField::kRowBytes),
                          same_size ? args.params.format : args.params.row_bytes,
                          same_size ? protocol::combine_code_format(code)
                                    : protocol::combine_code_row_bytes(code));
      }
      return false;
    }
    if (__any_sync(~0u, late)) {
      record_late(header, args.record, Phase::kCombine, epoch, peer, late);
      return false;
    }
    if (!awaited || !args.push) continue;
    if ((code & protocol::kRowsPlaced) != 0) tables.placed.set(peer);
    if (landing != protocol::kNoLanding) {
      tables.landing_out[peer] = static_cast<std::int64_t>(landing) * protocol::kAlign;
    }
  }
  return true;
}

}  // namespace moe_ep::cuda
