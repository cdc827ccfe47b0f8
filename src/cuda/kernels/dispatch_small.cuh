// The dispatch kernel of small steps: one token a block, at most 32 ranks.
//
// Every warp routes the token for itself and counts the earlier ones for itself, so nothing waits
// for a barrier before the rows are on their way: one latency for the row, the ids and the earlier
// tokens' ids, loaded side by side, then the stores.
#pragma once

#include "cuda/kernels/dispatch_await.cuh"
#include "cuda/kernels/dispatch_put.cuh"

namespace moe_ep::cuda {

// Where a token goes: a bit a rank, and in lane r its row at rank r.
struct TokenRoute {
  std::uint32_t ranks;
  std::int32_t row;
};

// The warp's route of `token`, and of nothing beyond the last token (then `row` counts them all).
__device__ __forceinline__ TokenRoute route_token(const DispatchArgs& args, std::uint32_t active,
                                                  std::int32_t token) {
  const protocol::DispatchParams& params = args.params;
  const std::int32_t num_ranks = params.workspace.layout.num_ranks;
  TokenRoute route{0, 0};
  if (token < params.num_tokens) {
    const protocol::IdRow ids = params.ids(token);
    for (std::int32_t first = 0; first < params.top_k; first += kWarp) {
      const std::int32_t k = first + lane_id();
      const std::int64_t id = k < params.top_k ? ids[k] : -1;
      const std::uint32_t bit = args.ownership.ownership.is_void(id)
                                    ? 0
                                    : 1u << args.ownership.owner(static_cast<std::int32_t>(id));
      route.ranks |= __reduce_or_sync(~0u, bit);
    }
    route.ranks &= active;
  }
  for (std::int32_t first = 0; first < token; first += kWarp) {
    const std::int32_t earlier = first + lane_id();
    const RankBits<1> visited = ranks_of_token<1>(params, args.ownership, {{active}},
                                                  earlier < token ? earlier : params.num_tokens);
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
      const std::uint32_t ballot = __ballot_sync(~0u, visited.words[0] >> rank & 1);
      if (lane_id() == rank) route.row += __popc(ballot);
    }
  }
  return route;
}

template <int Vectors>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    dispatch_small_kernel(const __grid_constant__ DispatchArgs args) {
  __shared__ AwaitTables tables;
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  protocol::SliceHeader* header = workspace.header();
  if (args.early) launch_dependents();
  const auto token = static_cast<std::int32_t>(blockIdx.x);
  const bool sends = token < params.num_tokens;  // false only without tokens
  PutUnit put = put_unit<Vectors>(args, warp_id());
  wait_for_producers();

  Piece<Vectors> piece;
  if (sends && warp_id() < args.num_pieces) load_unit(piece, args, put, token);
  const StepState state = StepState::load(header);
  const bool drain = header->drain != 0;
  const RankMask* mask = args.mask();
  const auto active = static_cast<std::uint32_t>(mask->words[0]);
  if (threadIdx.x < kRankMaskWords) tables.active.words[threadIdx.x] = mask->words[threadIdx.x];
  const TokenRoute route = route_token(args, active, token);

  if (drain) {  // the same in all blocks: only the last one to arrive changes the word
    __syncthreads();
    if (!drain_peers(tables, args, state.epoch)) return;
  }
  if (!state.failed && sends) {
    for (std::int32_t unit = warp_id(); unit < args.num_pieces; unit += num_warps()) {
      if (unit != warp_id()) {
        put = put_unit<Vectors>(args, unit);
        load_unit(piece, args, put, token);
      }
      for_each_rank(RankBits<1>{{route.ranks}}, [&](std::int32_t rank) {
        put_piece(piece, args, put, rank, __shfl_sync(~0u, route.row, rank));
      });
    }
    if (warp_id() == 0) {
      protocol::Hop* hops = workspace.hops(token);
      const std::int32_t index = __popc(route.ranks & ((1u << lane_id()) - 1));
      if ((route.ranks >> lane_id() & 1) != 0) hops[index] = {lane_id(), route.row};
      const std::int32_t count = __popc(route.ranks);
      if (lane_id() == 0 && count < workspace.layout.hops_per_token()) hops[count] = {-1, 0};
    }
  }
  if (__syncthreads_or(state.failed)) return;  // also if a thread saw it that another did not
  const std::int32_t sent = route.row + static_cast<std::int32_t>(route.ranks >> lane_id() & 1);
  const auto rows_for = [&](std::int32_t peer) { return __shfl_sync(~0u, sent, peer); };
  if (blockIdx.x == gridDim.x - 1) put_counts(params, tables.active, rows_for);
  if (blockIdx.x == 0) {
    put_signatures(params, tables.active);
    put_stats(params, tables.active);
  }

  __syncthreads();
  if (!arrive_last(tables.is_last, &header->dispatch_arrivals)) return;
  const Epoch epoch = protocol::next_epoch(state.epoch);
  exchange_flags(tables, args, epoch, [&](std::int32_t peer) {
    return gridDim.x == 1 ? rows_for(peer) : __ldcg(workspace.send_counts() + peer);
  });
  keep_state(tables, header, epoch);
}

}  // namespace moe_ep::cuda
