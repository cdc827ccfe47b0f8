// What the waits of a block's threads for many peers have in common.
#pragma once

#include <cstdint>

#include "cuda/device/memory.cuh"
#include "protocol/wait.hpp"

namespace moe_ep::cuda {

inline constexpr int kMissingWords = kMaxRanks / 32;

// A RankMask in shared memory, where a rank may index it (and where nothing may be initialised).
struct SharedMask {
  std::uint64_t words[kRankMaskWords];

  __device__ __forceinline__ bool test(std::int32_t rank) const {
    return (words[rank / 64] >> (rank % 64) & 1) != 0;
  }
};

// The status of a wait that `missing` (shared memory, one bit a rank) let run out.
__device__ inline protocol::StepStatus timeout_status(const std::uint32_t* missing, Phase phase,
                                                      Epoch epoch) {
  protocol::StepStatus status;
  status.result = protocol::StepResult::kTimeout;
  status.phase = phase;
  status.epoch = epoch;
  for (int word = 0; word < kRankMaskWords; ++word) {
    status.missing.words[word] =
        static_cast<std::uint64_t>(missing[2 * word + 1]) << 32 | missing[2 * word];
  }
  return status;
}

__device__ __forceinline__ void set_missing(std::uint32_t* missing, std::int32_t peer) {
  atomicOr(&missing[peer / 32], 1u << peer % 32);
}

__device__ __forceinline__ bool any_missing(const std::uint32_t* missing) {
  std::uint32_t any = 0;
  for (int word = 0; word < kMissingWords; ++word) any |= missing[word];
  return any != 0;
}

// Before a wait: nobody is missing, nobody said anything wrong. A barrier must follow.
__device__ __forceinline__ void clear_missing(std::uint32_t* missing, std::int32_t& first_bad) {
  if (threadIdx.x < kMissingWords) missing[threadIdx.x] = 0;
  if (threadIdx.x == 0) first_bad = kMaxRanks;
}

// Counts a block that has done its part, with everything its threads wrote before. True in the last
// one of the grid, which then sees what the others wrote.
__device__ __forceinline__ bool arrive_last(std::int32_t& is_last, std::uint32_t* counter) {
  __syncthreads();
  if (gridDim.x == 1) return true;
  if (threadIdx.x == 0) {
    fence_sys();  // with the barrier: rows of the whole block before the count
    is_last = arrive(counter) == gridDim.x - 1;
  }
  __syncthreads();
  return is_last != 0;
}

}  // namespace moe_ep::cuda
