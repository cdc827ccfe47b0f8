// Second part of a combine: bringing this rank's rows to where they are read.
#pragma once

#include "cuda/device/fp8_rows.cuh"
#include "cuda/device/memory.cuh"
#include "cuda/kernels/combine_args.cuh"

namespace moe_ep::cuda {

// Where the first row of a tile goes for one peer, or nothing: its rows stay where they are.
struct TileTarget {
  std::byte* rows = nullptr;
  std::int64_t stride = 0;
  std::int32_t num_rows = 0;
};

__device__ __forceinline__ TileTarget tile_target(const CombineTables& tables,
                                                  const CombineArgs& args, std::int32_t peer,
                                                  std::int32_t tile) {
  TileTarget target;
  const std::int32_t first = tile << args.chunk_shift;
  const std::int32_t left = tables.recv_counts[peer] - first;
  if (left <= 0 || !tables.active.test(peer)) return target;
  target.num_rows = left < args.chunk_rows() ? left : args.chunk_rows();
  if (tables.landing_out[peer] >= 0) {
    target.stride = args.wire_stride;
    target.rows =
        args.params.workspace.slice(peer) + tables.landing_out[peer] + first * args.wire_stride;
  } else if (args.place) {
    target.stride = args.params.row_bytes;
    target.rows = args.params.row(args.params.workspace.rank, peer, first);
  }
  return target;
}

// One peer's rows of a tile, spread over the warps of the block from `warp` on.
template <class Codec, bool Fp8, bool Wide>
__device__ __forceinline__ void send_rows(const CombineArgs& args, const TileTarget& target,
                                          std::int32_t peer, std::int32_t first,
                                          std::int32_t warp) {
  constexpr std::int32_t kUnit = kFp8UnitElements<Wide>;
  const std::int32_t elements = args.params.elements;
  const std::int32_t pieces = Fp8 ? (elements + kUnit - 1) / kUnit : args.copy_pieces;
  for (std::int32_t unit = warp; unit < target.num_rows * pieces; unit += num_warps()) {
    const std::int32_t row = unit / pieces;
    const std::int32_t piece = unit - row * pieces;
    const std::byte* from = args.own_row(peer, first + row);
    std::byte* to = target.rows + row * target.stride;
    if constexpr (Fp8) {
      encode_to<Codec, Wide>(to, from, piece * kUnit, elements);
    } else {
      Piece<kCopyVectors> held;
      const auto offset = static_cast<std::uint32_t>(piece) *
                          static_cast<std::uint32_t>(piece_bytes<kCopyVectors>(args.copy_width));
      const auto row_bytes = static_cast<std::uint32_t>(args.params.row_bytes);
      load_piece(held, from, offset, row_bytes, args.copy_width);
      store_piece(held, to, offset, row_bytes, args.copy_width);
    }
  }
}

// Sends tile `tile` to every peer and raises its flags. The whole block; peers in a rotated order,
// so that not all ranks write to the same one.
template <class Codec, bool Fp8, bool Wide>
__device__ __forceinline__ void send_tile(const CombineTables& tables, const CombineArgs& args,
                                          Epoch epoch, std::int32_t tile, float* scales) {
  const protocol::Workspace& workspace = args.params.workspace;
  const std::int32_t num_ranks = workspace.layout.num_ranks;
  const std::int32_t first = tile << args.chunk_shift;
  std::int32_t warp = warp_id();
  for (std::int32_t step = 1; step < num_ranks; ++step) {
    std::int32_t peer = workspace.rank + step;
    if (peer >= num_ranks) peer -= num_ranks;
    const TileTarget target = tile_target(tables, args, peer, tile);
    if (target.rows == nullptr) continue;
    if (Fp8 && target.rows == args.own_row(peer, first)) {
      for (std::int32_t row = 0; row < target.num_rows; ++row) {
        encode_in_place<Codec, Wide>(target.rows + row * target.stride, args.params.elements,
                                     scales);
      }
      continue;
    }
    send_rows<Codec, Fp8, Wide>(args, target, peer, first, warp);
    if (++warp == num_warps()) warp = 0;  // the next peer's first rows go to other warps
  }
  __syncthreads();
  if (warp_id() != 0) return;  // the others go on to the next tile meanwhile
  fence_sys();                 // with the barrier: rows of the whole block before the flags
  for (std::int32_t peer = lane_id(); peer < num_ranks; peer += kWarp) {
    if (peer == workspace.rank) continue;
    if (tile_target(tables, args, peer, tile).rows == nullptr) continue;
    store_relaxed(args.chunk(peer, workspace.rank, tile), epoch);  // pairs with find_sources
  }
}

}  // namespace moe_ep::cuda
