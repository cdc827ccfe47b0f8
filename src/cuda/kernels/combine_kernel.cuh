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

template <class Codec, bool Fp8, bool Wide, bool Quantised>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    combine_kernel(const __grid_constant__ CombineArgs args) {
  using Sum =
      std::conditional_t<Fp8, Fp8Sum<Codec, Wide, Quantised>, PlainSum<Codec, Wide, Quantised>>;
  __shared__ CombineTables tables;
  extern __shared__ float scales[];
  const protocol::CombineParams& params = args.params;
  protocol::SliceHeader* header = params.workspace.header();
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const auto num_blocks = static_cast<std::int32_t>(gridDim.x);
  const bool last_warp = warp_id() == num_warps() - 1;
  if (args.early) launch_dependents();
  wait_for_producers();
  const StepState state = StepState::load(header);
  const CombineStep step{state.epoch, clock_ns() + params.timeout_ns};

  if (args.push || args.place) {
    load_tables(tables, args);
    if (__syncthreads_or(state.failed)) return;  // also if a thread saw it that another did not
    if (args.ask_landing) share_landing(tables, args);
  } else if (state.failed) {
    return;  // the same in a warp, and no barrier follows
  }
  if (block == 0 && last_warp) announce(tables, args, step.epoch);
  if constexpr (Quantised) clear_scale_padding(args.output, params.num_tokens, params.elements);
  if (args.push && __syncthreads_or(last_warp && !await_entries(tables, args, step))) return;

  // Push: a tile is sent, one behind it is summed. Pull: all tiles are sent, then everything is
  // summed, neighbouring units on different multiprocessors, so that a small step is spread out.
  const std::int32_t behind = args.lag * num_blocks;
  for (std::int32_t tile = block;; tile += num_blocks) {
    const bool send = (args.push || args.place) && tile < args.num_tiles;
    if (send) send_tile<Codec, Fp8, Wide>(tables, args, step.epoch, tile, scales);
    SumShare share;
    if (args.push) {
      share.first_token = (tile - behind) << args.chunk_shift;
      share.num_tokens =
          tile < behind ? 0 : min(args.chunk_rows(), params.num_tokens - share.first_token);
      share.warp = warp_id();
      share.num_warps = num_warps();
    } else {
      share.first_token = 0;
      share.num_tokens = send ? 0 : params.num_tokens;
      share.warp = warp_id() * num_blocks + block;
      share.num_warps = num_warps() * num_blocks;
    }
    sum_tokens<Sum>(tables, args, step, share);
    if (args.push ? tile + num_blocks >= args.num_tiles + behind : !send) break;
  }
  if (!args.push) {
    // One warp awaits also those who have no row for this rank: the step ends with all of them.
    if (block == 0 && last_warp) await_entries(tables, args, step);
    return;
  }
  __syncthreads();
  if (!arrive_last(tables.is_last, &header->combine_arrivals)) return;
  if (threadIdx.x == 0) {
    header->combine_arrivals = 0;
    header->drain = 1;
  }
  for (std::int32_t peer = static_cast<std::int32_t>(threadIdx.x);
       peer < params.workspace.layout.num_ranks; peer += static_cast<std::int32_t>(blockDim.x)) {
    if (peer == params.workspace.rank || !tables.active.test(peer)) continue;
    // Pairs with drain_peers in the peer's next dispatch: this rank has read what was pushed.
    store_release(&params.workspace.line(peer, params.workspace.rank)->done_flag, step.epoch);
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
