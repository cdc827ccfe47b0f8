// Second part of a combine: bringing this rank's rows to where they are read.
//
// A warp sends a part of a row and raises its flag by itself: while it waits for the fence in front
// of the flag, the other warps of the block go on.
#pragma once

#include "cuda/device/fp8_rows.cuh"
#include "cuda/device/memory.cuh"
#include "cuda/kernels/combine_args.cuh"

namespace moe_ep::cuda {

// Where this rank's row `row` goes for one peer, or null: there is none, or it stays where it is.
__device__ __forceinline__ std::byte* row_target(const CombineTables& tables,
                                                 const CombineArgs& args, std::int32_t peer,
                                                 std::int32_t row) {
  if (row >= tables.recv_counts[peer] || !tables.active.test(peer)) return nullptr;
  const protocol::Workspace& workspace = args.params.workspace;
  if (tables.landing_out[peer] >= 0) {
    return workspace.slice(peer) + tables.landing_out[peer] + row * args.wire_stride;
  }
  return args.place ? args.params.row(workspace.rank, peer, row) : nullptr;
}

// The peers in a rotated order, so that not all ranks write to the same one.
__device__ __forceinline__ std::int32_t nth_peer(const protocol::Workspace& workspace,
                                                 std::int32_t n) {
  const std::int32_t peer = workspace.rank + 1 + n;
  return peer < workspace.layout.num_ranks ? peer : peer - workspace.layout.num_ranks;
}

// One part of a row that does not lie where it goes; of `elements` or, in a rehearsal, none. One
// warp.
template <class Codec, bool Fp8, bool Wide>
__device__ __forceinline__ void send_part(const CombineArgs& args, std::byte* to,
                                          const std::byte* from, std::int32_t part,
                                          std::int32_t elements) {
  const std::int32_t begin = part * args.part_elements;
  const std::int32_t end = min(begin + args.part_elements, elements);
  if constexpr (Fp8) {
    std::int32_t first = begin;
    do {
      encode_to<Codec, Wide>(to, from, first, elements);
      first += kFp8UnitElements<Wide>;
    } while (first < end);
  } else {
    constexpr std::uint32_t kSize = sizeof(typename Codec::Bits);
    const auto piece = static_cast<std::uint32_t>(piece_bytes<kCopyVectors>(args.copy_width));
    std::uint32_t at = begin * kSize;
    do {
      Piece<kCopyVectors> held;
      load_piece(held, from, at, end * kSize, args.copy_width);
      store_piece(held, to, at, end * kSize, args.copy_width);
      at += piece;
    } while (at < end * kSize);
  }
}

// Encodes the rows that stay where they are, and raises all their flags. All blocks.
template <class Codec, bool Wide>
__device__ __forceinline__ void encode_rows(const CombineTables& tables, const CombineArgs& args,
                                            Epoch epoch, float* scales) {
  const protocol::Workspace& workspace = args.params.workspace;
  for (auto row = static_cast<std::int32_t>(blockIdx.x); row < args.params.tokens_per_rank;
       row += static_cast<std::int32_t>(gridDim.x)) {
    for (std::int32_t n = 0; n < workspace.layout.num_ranks - 1; ++n) {
      const std::int32_t peer = nth_peer(workspace, n);
      std::byte* to = row_target(tables, args, peer, row);
      if (to == nullptr || to != args.own_row(peer, row)) continue;
      encode_in_place<Codec, Wide>(to, args.params.elements, scales);  // ends with a barrier
      if (warp_id() != 0) continue;
      fence_sys();  // with the barrier: what the whole block encoded before the flags
      if (lane_id() < args.num_parts) {
        // Pairs with find_sources.
        store_relaxed(args.flags(peer, workspace.rank, row) + lane_id(), epoch);
      }
    }
  }
}

// Sends what warp number `warp` of `count` has to send: parts of rows. Neighbouring parts go to
// neighbouring blocks, so that rows become complete in their order.
template <class Codec, bool Fp8, bool Wide>
__device__ __forceinline__ void send_rows(const CombineTables& tables, const CombineArgs& args,
                                          Epoch epoch, std::int32_t warp, std::int32_t count,
                                          bool live) {
  const protocol::Workspace& workspace = args.params.workspace;
  if (!live) {
    send_part<Codec, Fp8, Wide>(args, workspace.own(), workspace.own(), 0, 0);
    return;
  }
  const std::int32_t num_peers = workspace.layout.num_ranks - 1;
  const std::int64_t num_units =
      static_cast<std::int64_t>(args.params.tokens_per_rank) * num_peers * args.num_parts;
  for (std::int64_t unit = warp; unit < num_units; unit += count) {
    const std::int64_t visit = unit / args.num_parts;
    const auto part = static_cast<std::int32_t>(unit - visit * args.num_parts);
    const auto row = static_cast<std::int32_t>(visit / num_peers);
    const std::int32_t peer =
        nth_peer(workspace, static_cast<std::int32_t>(visit - std::int64_t{row} * num_peers));
    std::byte* to = row_target(tables, args, peer, row);
    const std::byte* from = args.own_row(peer, row);
    if (to == nullptr || to == from) continue;
    send_part<Codec, Fp8, Wide>(args, to, from, part, args.params.elements);
    __syncwarp();
    fence_sys();  // with the barrier: the warp's part before its flag
    // Pairs with find_sources.
    if (lane_id() == 0) store_relaxed(args.flags(peer, workspace.rank, row) + part, epoch);
  }
}

}  // namespace moe_ep::cuda
