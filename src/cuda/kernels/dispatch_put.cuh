// What a dispatch writes into the slices of other ranks.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/kernels/dispatch_args.cuh"

namespace moe_ep::cuda {

// One warp's share of a token: a piece of one payload, with what the constants say about it.
struct PutUnit {
  const std::byte* from;  // the payload's rows
  std::int64_t stride;
  std::int64_t placement;  // of the payload in every slice
  std::uint32_t offset;    // of the piece in a row
  std::uint32_t row_bytes;
  std::int32_t width;
  bool ids;  // made from topk_ids
};

template <int Vectors>
__device__ __forceinline__ PutUnit put_unit(const DispatchArgs& args, std::int32_t piece,
                                            bool live) {
  std::int32_t payload = 0;
  std::int32_t first = 0;
#pragma unroll
  for (std::int32_t next = 1; next < kMaxPayloads; ++next) {
    if (piece >= args.first_piece[next]) {
      payload = next;
      first = args.first_piece[next];
    }
  }
  const protocol::DispatchParams& params = args.params;
  PutUnit put;
  put.from = params.payloads[payload].rows;
  put.stride = params.payloads[payload].stride;
  put.placement = params.placement.offsets[payload];
  put.row_bytes = live ? static_cast<std::uint32_t>(params.row_bytes(payload)) : 0;
  put.width = args.width[payload];
  put.offset = static_cast<std::uint32_t>(piece - first) *
               static_cast<std::uint32_t>(piece_bytes<Vectors>(put.width));
  put.ids = payload == params.ids_payload;
  return put;
}

// The lane's k-th id as it travels.
__device__ __forceinline__ std::uint32_t sent_id(const DispatchArgs& args, std::int64_t id) {
  return static_cast<std::uint32_t>(args.ownership.is_void(id) ? args.params.invalid_expert_id
                                                               : static_cast<std::int32_t>(id));
}

template <int Vectors>
__device__ __forceinline__ void load_unit(Piece<Vectors>& piece, const DispatchArgs& args,
                                          const PutUnit& put, std::int32_t token) {
  if (!put.ids) {
    load_piece(piece, put.from + token * put.stride, put.offset, put.row_bytes, put.width);
    return;
  }
  const protocol::IdRow ids = args.params.ids(token);
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const std::int32_t k = static_cast<std::int32_t>(put.offset) / 4 + i * kWarp + lane_id();
    if (put.row_bytes != 0 && k < args.params.top_k) piece.vectors[i].x = sent_id(args, ids[k]);
  }
}

template <int Vectors>
__device__ __forceinline__ void put_piece(const Piece<Vectors>& piece, const DispatchArgs& args,
                                          const PutUnit& put, std::int32_t rank, std::int32_t row) {
  const protocol::Workspace& workspace = args.params.workspace;
  const std::int64_t index =
      static_cast<std::int64_t>(workspace.rank) * args.params.tokens_per_rank + row;
  store_piece(piece, workspace.slice(rank) + put.placement + index * put.row_bytes, put.offset,
              put.row_bytes, put.width);
}

// Writes `invalid_expert_id` over the ids of rows [first, T) of block `src` in `owner`'s slice. One
// warp.
__device__ __forceinline__ void mark_rows(const protocol::DispatchParams& params,
                                          std::int32_t owner, std::int32_t src,
                                          std::int32_t first) {
  auto* ids = reinterpret_cast<std::int32_t*>(params.row(owner, params.ids_payload, src, first));
  const std::int64_t count =
      static_cast<std::int64_t>(params.tokens_per_rank - first) * params.top_k;
  for (std::int64_t i = lane_id(); i < count; i += kWarp)
    ids[i] = params.invalid_expert_id;
}

// What the last block adds for one peer: the own signature and statistics, how many rows it got and
// the ids of those that stay empty; or what a rank that takes no part leaves in the own slice. One
// warp.
__device__ __forceinline__ void put_line(const protocol::DispatchParams& params, std::int32_t peer,
                                         bool takes_part, std::int32_t rows, bool live) {
  const protocol::Workspace& workspace = params.workspace;
  if (live && takes_part && lane_id() < protocol::kNumSignatureFields) {
    workspace.line(peer, workspace.rank)->signature.fields[lane_id()] =
        params.signature.fields[lane_id()];
  }
  if (live && params.eplb_local_stats != nullptr) {
    auto* row = reinterpret_cast<std::int32_t*>(
        takes_part ? workspace.slice(peer) + workspace.layout.eplb_row(workspace.rank)
                   : workspace.own() + workspace.layout.eplb_row(peer));
    for (std::int32_t expert = lane_id(); expert < workspace.layout.eplb_experts; expert += kWarp) {
      row[expert] = takes_part ? params.eplb_local_stats[expert] : 0;
    }
  }
  if (live && !takes_part && params.ids_payload >= 0) mark_rows(params, workspace.rank, peer, 0);
  if (live && lane_id() == 0) params.workspace.send_counts()[peer] = rows;
  if (takes_part && params.ids_payload >= 0 && rows < params.tokens_per_rank) {
    mark_rows(params, peer, params.workspace.rank, live ? rows : params.tokens_per_rank);
  }
}

}  // namespace moe_ep::cuda
