// What waits for several peers have in common.
#pragma once

#include <cstdint>

#include "cuda/device/memory.cuh"
#include "cuda/device/status.cuh"
#include "cuda/device/vector.cuh"
#include "protocol/wait.hpp"

namespace moe_ep::cuda {

// A RankMask in shared memory, where a rank may index it (and where nothing may be initialised).
struct SharedMask {
  std::uint64_t words[kRankMaskWords];

  __device__ __forceinline__ bool test(std::int32_t rank) const {
    return (words[rank / 64] >> (rank % 64) & 1) != 0;
  }
  __device__ __forceinline__ void set(std::int32_t rank) {
    atomicOr(reinterpret_cast<unsigned long long*>(&words[rank / 64]), 1ull << (rank % 64));
  }
  __device__ __forceinline__ bool empty() const {
    return (words[0] | words[1] | words[2] | words[3]) == 0;
  }
};

// One bit of a mask in global memory.
__device__ __forceinline__ bool test_rank(const RankMask* mask, std::int32_t rank) {
  return (mask->words[rank / 64] >> (rank % 64) & 1) != 0;
}

// What the waits of a block for many peers come to. One thread or warp a peer adds to it; after a
// barrier one thread says it (report).
struct BlockOutcome {
  SharedMask missing;
  std::int32_t first_bad;  // lowest peer that said something wrong

  // A barrier must follow.
  __device__ __forceinline__ void clear() {
    if (threadIdx.x < kRankMaskWords) missing.words[threadIdx.x] = 0;
    if (threadIdx.x == 0) first_bad = kMaxRanks;
  }
};

// A warp whose lanes waited for one peer each: records those for whom `late` holds.
__device__ inline void record_late(protocol::SliceHeader* header, FailureRecord* record,
                                   Phase phase, Epoch epoch, std::int32_t peer, bool late) {
  RankMask missing;
#pragma unroll
  for (int half = 0; half < 2 * kRankMaskWords; ++half) {
    const std::uint32_t bits =
        __reduce_or_sync(~0u, late && peer / 32 == half ? 1u << (peer % 32) : 0u);
    missing.words[half / 2] |= static_cast<std::uint64_t>(bits) << (half % 2 * 32);
  }
  if (lane_id() == 0) record_timeout(header, record, phase, epoch, missing);
}

// Waits until the tagged word at `flag` carries `epoch`; returns whether it did, and what it
// announces. A step's words are compared for equality: words of chunks may be very old.
__device__ __forceinline__ bool await_tag(DeviceMemory& memory, std::uint32_t* flag, Epoch epoch,
                                          std::uint64_t deadline, std::uint32_t& value) {
  std::uint64_t word = 0;
  const bool arrived = protocol::wait_until(memory, deadline, [&] {
    word = load_acquire(tagged_word(flag));
    return tag_of(word) == epoch;
  });
  value = value_of(word);
  return arrived;
}

// Counts a block that has done its part, with everything its threads wrote before. True in the last
// one of the grid, which then sees what the others wrote. A barrier must come before.
__device__ __forceinline__ bool arrive_last(std::int32_t& is_last, std::uint32_t* counter) {
  if (gridDim.x == 1) return true;
  if (threadIdx.x == 0) {
    fence_sys();  // with the barrier: rows of the whole block before the count
    is_last = arrive(counter) == gridDim.x - 1;
  }
  __syncthreads();
  return is_last != 0;
}

}  // namespace moe_ep::cuda
