// The state that a step's kernels find in the own slice, and how one of them ends early.
//
// The first failure of a rank wins: it sets SliceHeader::failed, which every later kernel reads
// first, and writes the record for the host. Blocks of the same launch may run on to their ends;
// nothing of a failed step is promised.
#pragma once

#include <cstdint>

#include "cuda/device/memory.cuh"
#include "cuda/kernels/launch.hpp"
#include "protocol/step.hpp"

namespace moe_ep::cuda {

// One load of what every block looks at first.
struct StepState {
  Epoch epoch;  // of the last step begun
  bool failed;

  static __device__ __forceinline__ StepState load(const protocol::SliceHeader* header) {
    static_assert(offsetof(protocol::SliceHeader, epoch) % 8 == 0 &&
                  offsetof(protocol::SliceHeader, failed) ==
                      offsetof(protocol::SliceHeader, epoch) + 4);
    const auto words = *reinterpret_cast<const uint2*>(&header->epoch);
    return {words.x, words.y != 0};
  }
};

// The mask of a dispatch: the caller's words, wherever they are.
__device__ __forceinline__ RankMask load_mask(const RankMask* default_mask,
                                              const RankMask& params_mask) {
  RankMask mask;
#pragma unroll
  for (int word = 0; word < kRankMaskWords; ++word) {
    mask.words[word] = default_mask != nullptr ? default_mask->words[word] : params_mask.words[word];
  }
  return mask;
}

// One thread. `status` must not be ok.
__device__ inline void record_failure(protocol::SliceHeader* header, FailureRecord* record,
                                      const protocol::StepStatus& status) {
  if (atomicCAS(&header->failed, 0u, 1u) != 0u || record == nullptr) return;
  record->status = status;
  store_release(&record->state, FailureRecord::kRecorded);  // pairs with the host's look at it
}

// What one peer's wait came to, so that a block can put together what all of them did.
enum class Arrival : std::uint32_t { kNotAwaited, kArrived, kMissing, kMismatch, kCorrupt };

}  // namespace moe_ep::cuda
