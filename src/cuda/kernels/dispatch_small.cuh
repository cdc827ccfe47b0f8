// The dispatch kernel of small steps: one token a block, at most 32 ranks.
//
// Every warp routes the token for itself and counts some of the earlier ones. The row, the ids
// and the state are loaded side by side, before any of them is looked at. The last warps of the
// last block, one a peer, add what does not depend on rows. Launched early, the kernel rehearses
// (await.cuh).
#pragma once

#include "cuda/kernels/dispatch_await.cuh"
#include "cuda/kernels/dispatch_flags.cuh"
#include "cuda/kernels/dispatch_put.cuh"

namespace moe_ep::cuda {

inline constexpr std::int32_t kSmallRanks = 32;

// The ranks that own one of the lanes' ids.
__device__ __forceinline__ std::uint32_t ranks_of_ids(const FastOwnership& ownership,
                                                      std::int64_t id) {
  RankBits<1> ranks;
  ranks.set(ownership.owner(static_cast<std::int32_t>(id)), !ownership.is_void(id));
  return __reduce_or_sync(~0u, ranks.words[0]);
}

// How many of the tokens before the block's go to each rank.
struct EarlierTokens {
  std::int32_t counts[kSmallRanks];
};

// Counts the tokens before `token`: a warp a token, a lane an id. A barrier must follow.
__device__ __forceinline__ void count_before(EarlierTokens& earlier, const DispatchArgs& args,
                                             std::uint32_t active, std::int32_t token, bool live) {
  constexpr int kBatch = 4;  // tokens on their way at once
  const std::int32_t top_k = args.params.top_k;
  std::int32_t count = 0;  // lane r: of those that go to rank r
  for (std::int32_t first = warp_id(); first < token; first += kBatch * num_warps()) {
    std::int64_t ids[kBatch];
    std::int64_t more_ids[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const std::int32_t other = first + i * num_warps();
      ids[i] = more_ids[i] = -1;
      if (other >= token) break;
      const protocol::IdRow row = args.params.ids(other);
      if (live && lane_id() < top_k) ids[i] = row[lane_id()];
      if (live && lane_id() + kWarp < top_k) more_ids[i] = row[lane_id() + kWarp];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * num_warps() >= token) break;  // the same in a warp
      std::uint32_t ranks = ranks_of_ids(args.ownership, ids[i]);
      if (top_k > kWarp) ranks |= ranks_of_ids(args.ownership, more_ids[i]);
      count += static_cast<std::int32_t>((ranks & active) >> lane_id() & 1);
    }
  }
  if (count != 0) atomicAdd(&earlier.counts[lane_id()], count);
}

template <int Vectors>
__device__ __forceinline__ void dispatch_token(const DispatchArgs& args, bool live) {
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t num_ranks = workspace.layout.num_ranks;
  protocol::SliceHeader* header = workspace.header();
  const auto token = static_cast<std::int32_t>(blockIdx.x);
  const bool sends = token < params.num_tokens;  // false only without tokens
  const bool has_unit = sends && warp_id() < args.num_pieces;
  PutUnit put = put_unit<Vectors>(args, warp_id(), live);
  const protocol::IdRow ids = params.ids(token);
  EarlierTokens& earlier = shared_object<EarlierTokens>();
  if (warp_id() == 0) earlier.counts[lane_id()] = 0;
  if (blockIdx.x == gridDim.x - 1) clear_missing();
  __syncthreads();
  if (live) wait_for_producers();

  Piece<Vectors> piece;
  if (has_unit && !put.ids) {
    load_piece(piece, put.from + token * put.stride, put.offset, put.row_bytes, put.width);
  }
  std::int64_t id = -1;
  std::int64_t more_id = -1;
  if (live && sends && lane_id() < params.top_k) id = ids[lane_id()];
  if (live && sends && lane_id() + kWarp < params.top_k) more_id = ids[lane_id() + kWarp];
  const StepState state = StepState::load(header, live);
  auto active = static_cast<std::uint32_t>(params.active.words[0]);
  if (live && args.default_mask != nullptr) {
    active = static_cast<std::uint32_t>(args.default_mask->words[0]);
  }
  count_before(earlier, args, active, token, live);
  std::uint32_t ranks = ranks_of_ids(args.ownership, id);
  if (params.top_k > kWarp) ranks |= ranks_of_ids(args.ownership, more_id);
  ranks = live ? ranks & active : 1;
  if (token > 0) __syncthreads();
  const std::int32_t row = earlier.counts[lane_id()];  // lane r: of the token at rank r
  const std::int32_t sent = row + static_cast<std::int32_t>(ranks >> lane_id() & 1);
  const bool failed =
      state.failed || (state.drain != 0 && !drain_peers(args, state.epoch, state.drain));

  if (!failed) {
    if (has_unit && put.ids) {
#pragma unroll
      for (int i = 0; i < Vectors; ++i) {
        const bool upper = put.offset / 4 + i * kWarp >= kWarp;
        piece.vectors[i].x = sent_id(args, upper ? more_id : id);
      }
    }
    for (std::int32_t unit = warp_id(); sends && unit < args.num_pieces; unit += num_warps()) {
      if (unit != warp_id()) {
        put = put_unit<Vectors>(args, unit, live);
        load_unit(piece, args, put, token);
      }
      for (std::uint32_t left = ranks; left != 0; left &= left - 1) {
        const std::int32_t rank = __ffs(static_cast<int>(left)) - 1;
        put_piece(piece, args, put, rank, __shfl_sync(~0u, row, rank));
      }
    }
    if (warp_id() == 0 && sends) {
      protocol::Hop* hops = workspace.hops(token);
      const std::int32_t index = __popc(ranks & ((1u << lane_id()) - 1));
      if (live && (ranks >> lane_id() & 1) != 0) hops[index] = {lane_id(), row};
      const std::int32_t count = __popc(ranks);
      if (live && lane_id() == 0 && count < workspace.layout.hops_per_token()) {
        hops[count] = {-1, 0};
      }
    }
    for (std::int32_t peer = num_warps() - 1 - warp_id(); peer < num_ranks; peer += num_warps()) {
      const bool takes_part = (active >> peer & 1) != 0;
      if (blockIdx.x == gridDim.x - 1) {
        put_line(params, peer, takes_part, __shfl_sync(~0u, sent, peer), live);
      }
    }
  }
  if (__syncthreads_or(failed)) return;
  const Epoch epoch = protocol::next_epoch(state.epoch);
  if (warp_id() == 0) {
    raise_flags(
        args, epoch, [&](std::int32_t peer) { return (active >> peer & 1) != 0; },
        [&](std::int32_t) { return sent; },  // lane r is peer r
        live);
  }
  if (blockIdx.x == gridDim.x - 1) await_flags(args, epoch, live);
}

template <int Vectors>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    dispatch_small_kernel(const __grid_constant__ DispatchArgs args) {
  if (args.early) launch_dependents();
#pragma unroll 1
  for (int act = first_act(args.rehearse); act <= kLastAct; ++act) {
    dispatch_token<Vectors>(args, opaque(act));
  }
}

}  // namespace moe_ep::cuda
