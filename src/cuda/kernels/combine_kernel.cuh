// The combine kernel (combine.hpp) and its variants for one element type. Each type is compiled in
// a file of its own.
#pragma once

#include <type_traits>

#include "cuda/kernels/combine_args.cuh"
#include "cuda/kernels/combine_enter.cuh"
#include "cuda/kernels/combine_send.cuh"
#include "cuda/kernels/combine_sum.cuh"
#include "cuda/kernels/combine_variant.cuh"

namespace moe_ep::cuda {

// The pushing warps of a block: two teams, so that one of them sends while the other one's rows are
// on their way. A tile in turn for each team of each block.
template <class Codec, bool Fp8, bool Wide>
__device__ __forceinline__ void send_tiles(const Team& team, std::int32_t index,
                                           std::int32_t num_teams, const CombineTables& tables,
                                           const CombineArgs& args, Epoch epoch, float* scales) {
  for (std::int32_t tile = index; tile < args.num_tiles; tile += num_teams) {
    send_tile<Codec, Fp8, Wide>(team, tables, args, epoch, tile, scales);
  }
}

template <class Codec, bool Fp8, bool Wide, bool Quantised>
__global__ void __launch_bounds__(combine_threads(Fp8, Quantised), 1)
    combine_kernel(const __grid_constant__ CombineArgs args) {
  using Sum =
      std::conditional_t<Fp8, Fp8Sum<Codec, Wide, Quantised>, PlainSum<Codec, Wide, Quantised>>;
  __shared__ CombineTables tables;
  extern __shared__ float scales[];  // of each team
  const protocol::CombineParams& params = args.params;
  protocol::SliceHeader* header = params.workspace.header();
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const auto num_blocks = static_cast<std::int32_t>(gridDim.x);
  const bool last_warp = warp_id() == num_warps() - 1;
  if (args.early) launch_dependents();
  wait_for_producers();
  const StepState state = StepState::load(header);
  const Epoch epoch = state.epoch;

  if (args.push || args.place) {
    load_tables(tables, args);
    if (__syncthreads_or(state.failed)) return;  // also if a thread saw it that another did not
    if (args.ask_landing) share_landing(tables, args);
  } else if (state.failed) {
    return;  // the same in a warp, and no barrier follows
  }
  if (block == 0 && last_warp) announce(tables, args, epoch);
  if constexpr (Quantised) clear_scale_padding(args.output, params.num_tokens, params.elements);
  if (args.push && __syncthreads_or(last_warp && !await_entries(tables, args, epoch))) return;

  // Who sends, and in how many parts: two teams of a block's first warps, or all of them at first.
  const std::int32_t senders = 2 * args.team_warps;
  const bool sends = args.push ? warp_id() < senders : args.place;
  if (sends) {
    const std::int32_t part = args.push && warp_id() >= args.team_warps ? 1 : 0;
    const Team team = args.push ? Team{part * args.team_warps, args.team_warps, 1 + part}
                                : Team{0, num_warps(), 0};
    send_tiles<Codec, Fp8, Wide>(team, args.push ? 2 * block + part : block,
                                 args.push ? 2 * num_blocks : num_blocks, tables, args, epoch,
                                 scales + part * protocol::fp8_num_blocks(params.elements));
  }
  // Who sums: a block's other warps one tile's tokens after another's, or all warps everything,
  // neighbouring units on different multiprocessors, so that a small step is spread out.
  if (!args.push) {
    sum_tokens<Sum>(
        tables, args, epoch,
        {0, params.num_tokens, warp_id() * num_blocks + block, num_warps() * num_blocks});
    // One warp awaits also those who have no row for this rank: the step ends with all of them.
    if (block == 0 && last_warp) await_entries(tables, args, epoch);
    return;
  }
  for (std::int32_t tile = block; warp_id() >= senders && tile < args.num_tiles;
       tile += num_blocks) {
    const std::int32_t first = tile << args.chunk_shift;
    const std::int32_t count = min(args.chunk_rows(), params.num_tokens - first);
    if (!sum_tokens<Sum>(tables, args, epoch,
                         {first, count, warp_id() - senders, num_warps() - senders})) {
      break;
    }
  }
  __syncthreads();
  if (warp_id() != 0 || !arrive_last(&header->combine_arrivals)) return;
  if (lane_id() == 0) {
    header->combine_arrivals = 0;
    header->drain = 1;
  }
  for (std::int32_t peer = lane_id(); peer < params.workspace.layout.num_ranks; peer += kWarp) {
    if (peer == params.workspace.rank || !tables.active.test(peer)) continue;
    // With the fences of arrive_last a release: this rank has read what was pushed. Pairs with
    // drain_peers in the peer's next dispatch.
    store_relaxed(&params.workspace.line(peer, params.workspace.rank)->done_flag, epoch);
  }
}

template <class Codec, bool Fp8, bool Wide>
CombineVariant combine_variant(bool quantised) {
  if constexpr (Fp8) {
    return {quantised ? combine_kernel<Codec, true, Wide, true>
                      : combine_kernel<Codec, true, Wide, false>,
            Fp8Sum<Codec, Wide, false>::kRound};
  } else {
    return {quantised ? combine_kernel<Codec, false, Wide, true>
                      : combine_kernel<Codec, false, Wide, false>,
            PlainSum<Codec, Wide, false>::kRound};
  }
}

template <class Codec>
CombineVariant combine_variant(bool fp8, bool wide, bool quantised) {
  if (fp8) {
    return wide ? combine_variant<Codec, true, true>(quantised)
                : combine_variant<Codec, true, false>(quantised);
  }
  return wide ? combine_variant<Codec, false, true>(quantised)
              : combine_variant<Codec, false, false>(quantised);
}

}  // namespace moe_ep::cuda
