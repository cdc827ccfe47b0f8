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

// Rows in FP8 wire form that stay where they are. All blocks.
template <class Codec, bool Fp8, bool Wide>
__device__ __forceinline__ void encode_own(const CombineTables& tables, const CombineArgs& args,
                                           Epoch epoch, float* scales) {
  if constexpr (Fp8) {
    if (args.params.expert_output == nullptr) {
      encode_rows<Codec, Wide>(tables, args, epoch, scales);
    }
  }
}

// A small step: every rank pulls. Neighbouring units lie on different multiprocessors, so that they
// are spread over all of them.
template <class Codec, bool Fp8, bool Wide, class Sum>
__device__ __forceinline__ void pull(CombineTables& tables, float* scales, const CombineArgs& args,
                                     bool live) {
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const auto num_blocks = static_cast<std::int32_t>(gridDim.x);
  const std::int32_t warp = warp_id() * num_blocks + block;
  const std::int32_t all_warps = num_warps() * num_blocks;
  const bool last_warp = warp_id() == num_warps() - 1;
  if (live) wait_for_producers();
  const StepState state = StepState::load(args.params.workspace.header(), live);
  if (live && args.place) {
    load_tables(tables, args, true);
    if (__syncthreads_or(state.failed)) return;  // also if a thread saw it that another did not
  } else if (state.failed) {
    return;  // the same in a warp, and no barrier follows
  }
  if (block == 0 && last_warp) announce(tables, args, state.epoch, live);
  if (live && block == 0 && threadIdx.x == 0)
    args.params.workspace.header()->combined = state.epoch;
  if (live && args.place) {
    encode_own<Codec, Fp8, Wide>(tables, args, state.epoch, scales);
    send_rows<Codec, Fp8, Wide>(tables, args, state.epoch, warp, all_warps, true);
  }
  sum_tokens<Sum>(tables, args, state.epoch, warp, all_warps, live);
  // One warp awaits also those who have no row for this rank: the step ends with all of them.
  if (live && block == 0 && last_warp) await_entries(tables, args, state.epoch, true);
}

// A large step. The first warps of each block send and the others sum, in the order of rows and
// tokens.
template <class Codec, bool Fp8, bool Wide, class Sum>
__device__ __forceinline__ void push(CombineTables& tables, float* scales, const CombineArgs& args,
                                     bool live) {
  const protocol::CombineParams& params = args.params;
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const auto num_blocks = static_cast<std::int32_t>(gridDim.x);
  protocol::SliceHeader* header = params.workspace.header();
  if (live) wait_for_producers();
  const StepState state = StepState::load(header, live);
  const Epoch epoch = state.epoch;
  load_tables(tables, args, live);
  if (__syncthreads_or(state.failed)) return;  // also if a thread saw it that another did not
  if (args.ask_landing) share_landing(tables, args, live);
  if (block == 0 && warp_id() == 0) announce(tables, args, epoch, live);
  if (__syncthreads_or(warp_id() == 0 && !await_entries(tables, args, epoch, live))) return;

  bool anything = args.place || !live;
  for (std::int32_t peer = static_cast<std::int32_t>(threadIdx.x);
       peer < params.workspace.layout.num_ranks; peer += static_cast<std::int32_t>(blockDim.x)) {
    anything = anything || tables.landing_out[peer] >= 0;
  }
  const std::int32_t senders = __syncthreads_or(anything) ? args.push_warps : 0;
  if (live && args.place) encode_own<Codec, Fp8, Wide>(tables, args, epoch, scales);
  if (warp_id() < senders) {
    send_rows<Codec, Fp8, Wide>(tables, args, epoch, warp_id() * num_blocks + block,
                                senders * num_blocks, live);
  }
  // A warp on its own does both.
  const std::int32_t first_adder = num_warps() > 1 ? senders : 0;
  if (warp_id() >= first_adder) {
    sum_tokens<Sum>(tables, args, epoch, (warp_id() - first_adder) * num_blocks + block,
                    (num_warps() - first_adder) * num_blocks, live);
  }
  __syncthreads();
  if (warp_id() != 0 || !arrive_last(&header->combine_arrivals, live) || !live) return;
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
#pragma unroll 1
  for (int act = first_act(args.rehearse); act <= kLastAct; ++act) {
    push<Codec, Fp8, Wide, SumOf<Codec, Fp8, Wide, Quantised>>(tables, scales, args, opaque(act));
    if (act < kLastAct) __syncthreads();  // warps are done with the tables
  }
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
