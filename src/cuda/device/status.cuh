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
  Epoch combined;  // the last step whose combine has begun
  // Not 0: a fence dispatch must wait until its peers have read what lies where its rows will.
  std::uint32_t drain;

  // Nothing is loaded, and nothing is wrong, in a rehearsal.
  static __device__ __forceinline__ StepState load(const protocol::SliceHeader* header,
                                                   bool live = true) {
    static_assert(offsetof(protocol::SliceHeader, epoch) % 16 == 0 &&
                  offsetof(protocol::SliceHeader, drain) ==
                      offsetof(protocol::SliceHeader, epoch) + 12);
    uint4 words{};
    if (live) words = *reinterpret_cast<const uint4*>(&header->epoch);
    return {words.x, words.y != 0, words.z, words.w};
  }
};

// One thread. `describe(status)` fills in what there is to say, straight into the record.
template <class Describe>
__device__ __forceinline__ void record_failure(protocol::SliceHeader* header, FailureRecord* record,
                                               protocol::StepResult result, Phase phase,
                                               Epoch epoch, Describe&& describe) {
  if (atomicCAS(&header->failed, 0u, 1u) != 0u || record == nullptr) return;
  record->status.result = result;
  record->status.phase = phase;
  record->status.epoch = epoch;
  describe(record->status);
  store_release(&record->state, FailureRecord::kRecorded);  // pairs with the host's look at it
}

// One thread: `missing` (RankMask or SharedMask) did not come in time.
template <class Mask>
__device__ __forceinline__ void record_timeout(protocol::SliceHeader* header, FailureRecord* record,
                                               Phase phase, Epoch epoch, const Mask& missing) {
  record_failure(header, record, protocol::StepResult::kTimeout, phase, epoch,
                 [&](protocol::StepStatus& status) {
#pragma unroll
                   for (int word = 0; word < kRankMaskWords; ++word) {
                     status.missing.words[word] = missing.words[word];
                   }
                 });
}

// One thread: `peer` announced `got` where this rank expects `want`.
__device__ __forceinline__ void record_difference(
    protocol::SliceHeader* header, FailureRecord* record, protocol::StepResult result, Phase phase,
    Epoch epoch, std::int32_t peer, std::int32_t field, std::int64_t want, std::int64_t got) {
  record_failure(header, record, result, phase, epoch, [&](protocol::StepStatus& status) {
    status.peer = peer;
    status.field = field;
    status.want = want;
    status.got = got;
  });
}

}  // namespace moe_ep::cuda
