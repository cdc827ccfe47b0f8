// Second part of a dispatch: what a block writes into the slices of other ranks.
#pragma once

#include "cuda/device/memory.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/kernels/dispatch_args.cuh"

namespace moe_ep::cuda {

// One warp's share of a token: a piece of one payload.
struct PutUnit {
  std::int32_t payload;
  std::uint32_t offset;  // in the row
};

template <int Vectors>
__device__ __forceinline__ PutUnit put_unit(const DispatchArgs& args, std::int32_t piece) {
  PutUnit put{0, 0};
  std::int32_t first = 0;
#pragma unroll
  for (std::int32_t payload = 1; payload < kMaxPayloads; ++payload) {
    const std::int32_t begin =
        args.first_piece[payload];  // those that do not exist begin at the end
    if (piece >= begin) {
      put.payload = payload;
      first = begin;
    }
  }
  put.offset = static_cast<std::uint32_t>(piece - first) *
               static_cast<std::uint32_t>(piece_bytes<Vectors>(args.width[put.payload]));
  return put;
}

template <int Vectors>
__device__ __forceinline__ void load_unit(Piece<Vectors>& piece, const DispatchArgs& args,
                                          const PutUnit& put, std::int32_t token) {
  const protocol::DispatchParams& params = args.params;
  if (put.payload != params.ids_payload) {
    const protocol::Payload& from = params.payloads[put.payload];
    load_piece(piece, from.rows + token * from.stride, put.offset,
               static_cast<std::uint32_t>(params.row_bytes(put.payload)), args.width[put.payload]);
    return;
  }
  const protocol::IdRow ids = params.ids(token);
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const std::int32_t k = static_cast<std::int32_t>(put.offset) / 4 + i * kWarp + lane_id();
    if (k >= params.top_k) continue;
    const std::int64_t id = ids[k];
    piece.vectors[i].x = static_cast<std::uint32_t>(
        params.ownership.is_void(id) ? params.invalid_expert_id : static_cast<std::int32_t>(id));
  }
}

template <int Vectors>
__device__ __forceinline__ void put_piece(const Piece<Vectors>& piece, const DispatchArgs& args,
                                          const PutUnit& put, std::int32_t rank, std::int32_t row) {
  const protocol::DispatchParams& params = args.params;
  store_piece(piece, params.row(rank, put.payload, params.workspace.rank, row), put.offset,
              static_cast<std::uint32_t>(params.row_bytes(put.payload)), args.width[put.payload]);
}

// Writes `invalid_expert_id` over the ids of rows [first, T) of block `src` in `owner`'s slice. The
// whole block of threads.
__device__ __forceinline__ void mark_rows(const protocol::DispatchParams& params,
                                          std::int32_t owner, std::int32_t src,
                                          std::int32_t first) {
  auto* ids = reinterpret_cast<std::int32_t*>(params.row(owner, params.ids_payload, src, first));
  const std::int64_t count =
      static_cast<std::int64_t>(params.tokens_per_rank - first) * params.top_k;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x)
    ids[i] = params.invalid_expert_id;
}

// The own signature into every active peer's line: the last warps of one block, which are the first
// to have nothing else to do.
__device__ __forceinline__ void put_signatures(const protocol::DispatchParams& params,
                                               const SharedMask& active) {
  const protocol::Workspace& workspace = params.workspace;
  for (std::int32_t peer = num_warps() - 1 - warp_id(); peer < workspace.layout.num_ranks;
       peer += num_warps()) {
    if (!active.test(peer) || lane_id() >= protocol::kNumSignatureFields) continue;
    workspace.line(peer, workspace.rank)->signature.fields[lane_id()] =
        params.signature.fields[lane_id()];
  }
}

// The own statistics for everybody, and what ranks that take no part leave. One block.
__device__ __forceinline__ void put_stats(const protocol::DispatchParams& params,
                                          const SharedMask& active) {
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t experts = workspace.layout.eplb_experts;
  for (std::int32_t peer = 0; peer < workspace.layout.num_ranks; ++peer) {
    const bool takes_part = active.test(peer);
    if (params.eplb_local_stats != nullptr) {
      auto* row = reinterpret_cast<std::int32_t*>(
          takes_part ? workspace.slice(peer) + workspace.layout.eplb_row(workspace.rank)
                     : workspace.own() + workspace.layout.eplb_row(peer));
      for (std::int32_t expert = static_cast<std::int32_t>(threadIdx.x); expert < experts;
           expert += static_cast<std::int32_t>(blockDim.x)) {
        row[expert] = takes_part ? params.eplb_local_stats[expert] : 0;
      }
    }
    if (!takes_part && params.ids_payload >= 0) mark_rows(params, workspace.rank, peer, 0);
  }
}

// What only the block with the last tokens knows: how many went where (`rows_for`), and so which
// rows stay empty.
template <class RowsFor>
__device__ __forceinline__ void put_counts(const protocol::DispatchParams& params,
                                           const SharedMask& active, RowsFor&& rows_for) {
  const protocol::Workspace& workspace = params.workspace;
  for (std::int32_t peer = 0; peer < workspace.layout.num_ranks; ++peer) {
    const std::int32_t rows = rows_for(peer);
    if (threadIdx.x == 0) workspace.send_counts()[peer] = rows;
    if (params.ids_payload >= 0 && active.test(peer) && rows < params.tokens_per_rank) {
      mark_rows(params, peer, workspace.rank, rows);
    }
  }
}

}  // namespace moe_ep::cuda
