// The dispatch kernel of large steps: a range of tokens a block, routed batch by batch. Launched
// early, it rehearses (await.cuh) with one token that goes to rank 0.
#pragma once

#include "cuda/device/shared.cuh"
#include "cuda/kernels/dispatch_await.cuh"
#include "cuda/kernels/dispatch_flags.cuh"
#include "cuda/kernels/dispatch_put.cuh"
#include "cuda/kernels/dispatch_route.cuh"

namespace moe_ep::cuda {

// The rows of a batch, piece by piece, every piece to all ranks its token visits.
template <int Vectors>
__device__ __forceinline__ void put_batch(const RouteTables& routes, const DispatchArgs& args,
                                          std::int32_t first, std::int32_t num_tokens, bool live) {
  const std::int32_t num_units = num_tokens * args.num_pieces;
  for (std::int32_t unit = warp_id(); unit < num_units; unit += num_warps()) {
    const std::int32_t local = args.pieces(unit);
    const PutUnit put = put_unit<Vectors>(args, unit - local * args.num_pieces, live);
    Piece<Vectors> piece;
    load_unit(piece, args, put, first + local);
    const protocol::Hop* hops = routes.hops + local * args.hops_per_token;
    for (std::int32_t hop = 0; hop < routes.num_hops[local]; ++hop) {
      put_piece(piece, args, put, hops[hop].rank, hops[hop].row);
    }
  }
}

template <int Words, int Vectors>
__device__ __forceinline__ void dispatch_range(RouteTables& routes, const DispatchArgs& args,
                                               bool live) {
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t num_ranks = workspace.layout.num_ranks;
  protocol::SliceHeader* header = workspace.header();
  for (std::int32_t rank = static_cast<std::int32_t>(threadIdx.x); rank < num_ranks;
       rank += static_cast<std::int32_t>(blockDim.x)) {
    routes.next_row[rank] = 0;
  }
  if (blockIdx.x == gridDim.x - 1) clear_missing();
  __syncthreads();
  if (live) wait_for_producers();

  const StepState state = StepState::load(header, live);
  const auto active = to_bits<Words>(live ? args.mask() : &params.active);
  std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) * args.tokens_per_block;
  std::int32_t end = min(begin + args.tokens_per_block, params.num_tokens);
  if (!live) {
    begin = 0;
    end = 1;
  }
  const bool failed =
      state.failed || (state.drain != 0 && !drain_peers(args, state.epoch, state.drain));

  count_earlier<Words>(routes, args, active, live ? begin : 1, live);
  for (std::int32_t first = begin; first < end; first += args.batch_tokens) {
    const std::int32_t batch_end = min(first + args.batch_tokens, end);
    const auto ranks = vote<Words>(routes, args, active, first, batch_end, live);
    if (__syncthreads_or(failed)) return;  // also if a thread saw it that another did not
    place_groups(routes, num_ranks, batch_end - first);
    __syncthreads();
    list_hops<Words>(routes, args, ranks, first, batch_end, live);
    __syncthreads();
    put_batch<Vectors>(routes, args, first, batch_end - first, live);
  }
  if (__syncthreads_or(failed)) return;
  for (std::int32_t peer = num_warps() - 1 - warp_id(); peer < num_ranks; peer += num_warps()) {
    const bool takes_part = test_rank(live ? args.mask() : &params.active, peer);
    if (blockIdx.x == gridDim.x - 1) {
      put_line(params, peer, takes_part, routes.next_row[peer], live);
    }
  }
  __syncthreads();
  const Epoch epoch = protocol::next_epoch(state.epoch);
  if (warp_id() == 0) {
    raise_flags(
        args, epoch, [&](std::int32_t peer) { return active.test(peer); },
        [&](std::int32_t peer) { return routes.next_row[peer]; }, live);
  }
  if (blockIdx.x == gridDim.x - 1) await_flags(args, epoch, live);
}

template <int Words, int Vectors>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    dispatch_large_kernel(const __grid_constant__ DispatchArgs args) {
  RouteTables& routes = shared_object<RouteTables>();
  if (args.early) launch_dependents();
#pragma unroll 1
  for (int act = first_act(args.rehearse); act <= kLastAct; ++act) {
    dispatch_range<Words, Vectors>(routes, args, opaque(act));
    if (act < kLastAct) __syncthreads();  // warp 0 is done with the tables
  }
}

}  // namespace moe_ep::cuda
