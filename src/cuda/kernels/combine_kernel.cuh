// The combine kernels (combine.hpp) and their variants for one element type. Each type is compiled
// in a file of its own.
#pragma once

#include <type_traits>

#include "cuda/device/shared.cuh"
#include "cuda/kernels/combine_args.cuh"
#include "cuda/kernels/combine_enter.cuh"
#include "cuda/kernels/combine_send.cuh"
#include "cuda/kernels/combine_sum.cuh"
#include "cuda/kernels/combine_variant.cuh"

namespace moe_ep::cuda {

// A small step: every rank pulls. Neighbouring units lie on different multiprocessors, so that they
// are spread over all of them.
template <class Codec, bool Fp8, bool Wide, class Sum>
__device__ __forceinline__ void pull(CombineTables& tables, float* scales, const CombineArgs& args,
                                     bool live) {
  const protocol::CombineParams& params = args.params;
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const auto num_blocks = static_cast<std::int32_t>(gridDim.x);
  const bool last_warp = warp_id() == num_warps() - 1;
  if (live) wait_for_producers();
  const StepState state = StepState::load(params.workspace.header(), live);
  if (live && args.place) {
    load_tables(tables, args);
    if (__syncthreads_or(state.failed)) return;  // also if a thread saw it that another did not
  } else if (state.failed) {
    return;  // the same in a warp, and no barrier follows
  }
  if (block == 0 && last_warp) announce(tables, args, state.epoch, live);
  if (live && block == 0 && threadIdx.x == 0) params.workspace.header()->combined = state.epoch;
  for (std::int32_t tile = block; live && args.place && tile < args.num_tiles; tile += num_blocks) {
    send_tile<Codec, Fp8, Wide>(tables, args, state.epoch, tile, scales);
  }
  sum_tokens<Sum>(tables, args, state.epoch,
                  {0, params.num_tokens, warp_id() * num_blocks + block, num_warps() * num_blocks},
                  live);
  // One warp awaits also those who have no row for this rank: the step ends with all of them.
  if (live && block == 0 && last_warp) await_entries(tables, args, state.epoch);
}

// A large step. The first blocks send and the others sum, one tile's tokens after another's.
template <class Codec, bool Fp8, bool Wide, class Sum>
__device__ __forceinline__ void push(CombineTables& tables, float* scales,
                                     const CombineArgs& args) {
  const protocol::CombineParams& params = args.params;
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const auto num_blocks = static_cast<std::int32_t>(gridDim.x);
  protocol::SliceHeader* header = params.workspace.header();
  wait_for_producers();
  const StepState state = StepState::load(header);
  const Epoch epoch = state.epoch;
  load_tables(tables, args);
  if (__syncthreads_or(state.failed)) return;  // also if a thread saw it that another did not
  if (args.ask_landing) share_landing(tables, args);
  if (block == 0 && warp_id() == 0) announce(tables, args, epoch, true);
  if (__syncthreads_or(warp_id() == 0 && !await_entries(tables, args, epoch))) return;

  bool anything = args.place;
  for (std::int32_t peer = static_cast<std::int32_t>(threadIdx.x);
       peer < params.workspace.layout.num_ranks; peer += static_cast<std::int32_t>(blockDim.x)) {
    anything = anything || tables.landing_out[peer] >= 0;
  }
  const std::int32_t senders = __syncthreads_or(anything) ? args.push_blocks : 0;
  for (std::int32_t tile = block; block < senders && tile < args.num_tiles; tile += senders) {
    send_tile<Codec, Fp8, Wide>(tables, args, epoch, tile, scales);
  }
  // A block on its own does both.
  const std::int32_t first_adder = num_blocks > 1 ? senders : 0;
  for (std::int32_t tile = block - first_adder; tile >= 0 && tile < args.num_tiles;
       tile += num_blocks - first_adder) {
    const std::int32_t first = tile << args.chunk_shift;
    const std::int32_t count = min(args.chunk_rows(), params.num_tokens - first);
    if (!sum_tokens<Sum>(tables, args, epoch, {first, count, warp_id(), num_warps()}, true)) break;
  }
  __syncthreads();
  if (warp_id() != 0 || !arrive_last(&header->combine_arrivals)) return;
  if (lane_id() == 0) {
    header->combined = epoch;
    header->combine_arrivals = 0;
    header->drain = kDrainTold;
  }
  for (std::int32_t peer = lane_id(); peer < params.workspace.layout.num_ranks; peer += kWarp) {
    if (peer == params.workspace.rank || !tables.active.test(peer)) continue;
    // With the fences of arrive_last a release: this rank has read what was pushed. Pairs with
    // drain_peers in the peer's next dispatch.
    store_relaxed(&params.workspace.line(peer, params.workspace.rank)->done_flag, epoch);
  }
}

template <class Codec, bool Fp8, bool Wide, bool Quantised>
using SumOf =
    std::conditional_t<Fp8, Fp8Sum<Codec, Wide, Quantised>, PlainSum<Codec, Wide, Quantised>>;

template <class Codec, bool Fp8, bool Wide, bool Quantised>
__global__ void __launch_bounds__(combine_threads(Fp8, Quantised), 1)
    combine_pull_kernel(const __grid_constant__ CombineArgs args) {
  CombineTables& tables = shared_object<CombineTables>();
  float* scales = dynamic_shared<float>();
  if (args.early) launch_dependents();
#pragma unroll 1
  for (int act = first_act(args.rehearse); act <= kLastAct; ++act) {
    pull<Codec, Fp8, Wide, SumOf<Codec, Fp8, Wide, Quantised>>(tables, scales, args, opaque(act));
  }
  if constexpr (Quantised) {
    clear_scale_padding(args.output, args.params.num_tokens, args.params.elements);
  }
}

template <class Codec, bool Fp8, bool Wide, bool Quantised>
__global__ void __launch_bounds__(combine_threads(Fp8, Quantised), 1)
    combine_push_kernel(const __grid_constant__ CombineArgs args) {
  CombineTables& tables = shared_object<CombineTables>();
  float* scales = dynamic_shared<float>();
  if (args.early) launch_dependents();
  push<Codec, Fp8, Wide, SumOf<Codec, Fp8, Wide, Quantised>>(tables, scales, args);
  if constexpr (Quantised) {
    clear_scale_padding(args.output, args.params.num_tokens, args.params.elements);
  }
}

template <class Codec, bool Fp8, bool Wide, bool Quantised>
CombineVariant combine_variant() {
  return {combine_pull_kernel<Codec, Fp8, Wide, Quantised>,
          combine_push_kernel<Codec, Fp8, Wide, Quantised>,
          SumOf<Codec, Fp8, Wide, Quantised>::kRound};
}

template <class Codec, bool Fp8>
CombineVariant combine_variant(bool wide, bool quantised) {
  if (quantised) {
    return wide ? combine_variant<Codec, Fp8, true, true>()
                : combine_variant<Codec, Fp8, false, true>();
  }
  return wide ? combine_variant<Codec, Fp8, true, false>()
              : combine_variant<Codec, Fp8, false, false>();
}

template <class Codec>
CombineVariant combine_variant(bool fp8, bool wide, bool quantised) {
  return fp8 ? combine_variant<Codec, true>(wide, quantised)
             : combine_variant<Codec, false>(wide, quantised);
}

}  // namespace moe_ep::cuda
