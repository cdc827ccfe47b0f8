// A token's ids and the ranks it visits, a warp a token.
#pragma once

#include "cuda/kernels/lamport_args.cuh"

namespace moe_ep::cuda {

// A lane's ids of a token as they lie in memory: what is made of them would wait for the load. The
// upper words of 64-bit ids are 0 unless they are void.
struct LaneIds {
  uint2 low{~0u, 0};   // number lane
  uint2 high{~0u, 0};  // number 32 + lane

  // Where the lane's first one is.
  static __device__ __forceinline__ auto place(const protocol::DispatchParams& params,
                                               std::int32_t token) -> const std::byte* {
    return params.topk_ids + token * params.topk_ids_stride +
           (static_cast<std::uint32_t>(lane_id()) << (params.wide_ids ? 3 : 2));
  }
  // None unless the token exists.
  __device__ __forceinline__ void load(const protocol::DispatchParams& params,
                                       const std::byte* place, bool exists) {
    static_assert(kMaxTopK <= 2 * kWarp);
    const bool wide = params.wide_ids;
    low = high = {~0u, 0};
    if (exists && lane_id() < params.top_k) load_id(low, place, wide);
    if (params.top_k > kWarp && exists && lane_id() + kWarp < params.top_k) {
      load_id(high, place + (wide ? 8 * kWarp : 4 * kWarp), wide);
    }
  }

  static __device__ __forceinline__ bool is_void(const LamportDispatchArgs& args, const uint2& id) {
    return id.y != 0 || args.ownership.is_void(static_cast<std::int32_t>(id.x));
  }

  // The active ranks that the token visits. The whole warp.
  template <int Words>
  __device__ __forceinline__ RankBits<Words> visits(const LamportDispatchArgs& args,
                                                    const RankBits<Words>& active) const {
    RankBits<Words> ranks;
    ranks.set(args.ownership.owner(static_cast<std::int32_t>(low.x)), !is_void(args, low));
    if (args.params.top_k > kWarp) {
      ranks.set(args.ownership.owner(static_cast<std::int32_t>(high.x)), !is_void(args, high));
    }
#pragma unroll
    for (int word = 0; word < Words; ++word) {
      ranks.words[word] = __reduce_or_sync(~0u, ranks.words[word]) & active.words[word];
    }
    return ranks;
  }

 private:
  static __device__ __forceinline__ void load_id(uint2& id, const std::byte* from, bool wide) {
    if (wide) {
      std::uint32_t words[2];
      load_words(words, from);
      id = {words[0], words[1]};
    } else {
      id.x = load_relaxed(reinterpret_cast<const std::uint32_t*>(from));
    }
  }
};

}  // namespace moe_ep::cuda
