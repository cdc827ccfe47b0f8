// Waits for other ranks, and what several of them have in common.
#pragma once

#include <cstdint>

#include "cuda/device/memory.cuh"
#include "cuda/device/status.cuh"
#include "cuda/device/vector.cuh"

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
};

// One bit of a mask, wherever it is.
__device__ __forceinline__ bool test_rank(const RankMask* mask, std::int32_t rank) {
  return (mask->words[rank / 64] >> (rank % 64) & 1) != 0;
}

// How long a step may wait, and the word that ends all waits of the rank: SliceHeader::failed, set
// by another block that gave up or by the host that wants the kernel to end.
struct Patience {
  std::uint64_t timeout_ns;
  const std::uint32_t* failed;
};

// **Rehearsal.** An instruction that a multiprocessor has not run since it started the kernel comes
// from the L2 cache, eight at a time, and most of a small step's instructions run once: fetching
// them took about as long as everything else (T = 1: half of 9.6 us a pair). A kernel that is
// launched early therefore runs its body twice. The first time, before it waits for its producers,
// it touches no global memory: `live` is false, loads give nothing, stores and waits are left out,
// rows have no bytes. The second time it finds its instructions in the cache.
//
// first_act() .. kLastAct number the runs; opaque() keeps the compiler from making two copies of
// the body, which would defeat the purpose.
inline constexpr int kLastAct = 1;
__device__ __forceinline__ int first_act(bool early) {
  return early ? 0 : kLastAct;
}
__device__ __forceinline__ bool opaque(int& act) {
  forget(act);
  return act == kLastAct;
}

// Polls `arrived()` until it holds, or until the patience is over. What usually comes within a
// microsecond costs no look at the clock: the time runs from the first look, after kPollsPerClock
// polls, and the last look at the word follows the last one at the clock.
template <class Arrived>
__device__ __forceinline__ bool wait_until(const Patience& patience, Arrived&& arrived) {
  constexpr std::uint32_t kPollsPerClock = 64;
  constexpr std::uint32_t kBusyPolls = 256;  // then leave the issue slots to others
  std::uint64_t deadline = 0;
  bool over = false;
  for (std::uint32_t polls = 1;; ++polls) {
    if (arrived()) return true;
    if (over) return false;
    if (polls % kPollsPerClock == 0) {
      const std::uint64_t now = clock_ns();
      if (deadline == 0) deadline = now + patience.timeout_ns;
      over = now >= deadline || load_relaxed(patience.failed) != 0;
    }
    if (polls > kBusyPolls) __nanosleep(100);
  }
}

// Waits until the tagged word at `flag` carries `epoch`; returns whether it did, and what it
// announces. A step's words are compared for equality: some of them may be very old.
__device__ __forceinline__ bool await_tag(const Patience& patience, std::uint32_t* flag,
                                          Epoch epoch, std::uint32_t& value) {
  std::uint64_t word = 0;
  const bool arrived = wait_until(patience, [&] {
    word = load_acquire(tagged_word(flag));
    return tag_of(word) == epoch;
  });
  value = value_of(word);
  return arrived;
}

__device__ __forceinline__ bool await_flag(const Patience& patience, const std::uint32_t* flag,
                                           Epoch epoch) {
  return wait_until(patience, [&] { return load_acquire(flag) == epoch; });
}

// A warp whose lanes waited for one peer each: adds those for whom `late` holds.
__device__ __forceinline__ void add_late(RankMask& missing, std::int32_t peer, bool late) {
#pragma unroll
  for (int half = 0; half < 2 * kRankMaskWords; ++half) {
    const std::uint32_t bits =
        __reduce_or_sync(~0u, late && peer / 32 == half ? 1u << (peer % 32) : 0u);
    missing.words[half / 2] |= static_cast<std::uint64_t>(bits) << (half % 2 * 32);
  }
}

// The same, and that is the failure.
__device__ inline void record_late(protocol::SliceHeader* header, FailureRecord* record,
                                   Phase phase, Epoch epoch, std::int32_t peer, bool late) {
  RankMask missing;
  add_late(missing, peer, late);
  if (lane_id() == 0) record_timeout(header, record, phase, epoch, missing);
}

// Counts a block whose threads have done their part, behind a barrier; one warp. True in the last
// block of the grid. Then this warp's lanes have seen what all blocks wrote, and flags that they
// raise next release it: fence, count, fence, flag.
__device__ __forceinline__ bool arrive_last(std::uint32_t* counter, bool live = true) {
  if (live) fence_sys();
  if (gridDim.x == 1) return true;
  std::uint32_t before = gridDim.x - 1;
  if (live && lane_id() == 0) before = count_up(counter);
  before = __shfl_sync(~0u, before, 0);
  if (before != gridDim.x - 1) return false;
  if (live) fence_sys();
  return true;
}

}  // namespace moe_ep::cuda
