// The part of CUDA's device vocabulary that the kernels use, for a host compiler. As with nvcc,
// every source includes it first.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "machine_calls.hpp"

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

// Vectors, aligned as on the device: sanitizers see an address that is not.
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}

// The thread that runs. The machine sets them before every turn.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

// Barriers and warps.
inline void __syncthreads() {
  moe_ep::emulator::barrier(moe_ep::emulator::Barrier::kPlain, false);
}
inline int __syncthreads_or(int predicate) {
  return moe_ep::emulator::barrier(moe_ep::emulator::Barrier::kOr, predicate != 0);
}
inline void __syncwarp(unsigned mask = ~0u) {
  moe_ep::emulator::meet(moe_ep::emulator::Meeting::kSyncWarp, mask, 0);
}

namespace moe_ep::emulator {

template <class T>
T shuffle(Meeting kind, unsigned mask, T value, unsigned from) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  word = meet(kind, mask, word)[from < 32 ? from : threadIdx.x % 32];
  std::memcpy(&value, &word, sizeof(T));
  return value;
}

}  // namespace moe_ep::emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return moe_ep::emulator::shuffle(moe_ep::emulator::Meeting::kShuffle, mask, value,
                                   static_cast<unsigned>(lane) % 32);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return moe_ep::emulator::shuffle(moe_ep::emulator::Meeting::kShuffleXor, mask, value,
                                   threadIdx.x % 32 ^ static_cast<unsigned>(distance));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
  return moe_ep::emulator::shuffle(moe_ep::emulator::Meeting::kShuffleDown, mask, value,
                                   threadIdx.x % 32 + distance);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
  return moe_ep::emulator::shuffle(moe_ep::emulator::Meeting::kShuffleUp, mask, value,
                                   threadIdx.x % 32 - distance);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const std::uint64_t* votes =
      moe_ep::emulator::meet(moe_ep::emulator::Meeting::kBallot, mask, predicate != 0);
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    ballot |= static_cast<unsigned>(votes[lane]) << lane;
  return ballot;
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == ~0u;
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  const std::uint64_t* values =
      moe_ep::emulator::meet(moe_ep::emulator::Meeting::kReduceOr, mask, value);
  unsigned all = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    all |= static_cast<unsigned>(values[lane]);
  return all;
}

// Atomics. Nobody else runs meanwhile.
template <class T>
T atomicAdd(T* word, std::type_identity_t<T> value) {
  moe_ep::emulator::act();
  return std::exchange(*word, static_cast<T>(*word + value));
}
template <class T>
T atomicMin(T* word, std::type_identity_t<T> value) {
  moe_ep::emulator::act();
  return std::exchange(*word, value < *word ? value : *word);
}
template <class T>
T atomicOr(T* word, std::type_identity_t<T> value) {
  moe_ep::emulator::act();
  return std::exchange(*word, static_cast<T>(*word | value));
}
template <class T>
T atomicCAS(T* word, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  moe_ep::emulator::act();
  return *word == expected ? std::exchange(*word, value) : *word;
}

inline void __nanosleep(unsigned ns) {
  moe_ep::emulator::sleep(ns);
}

// Arithmetic.
using std::max;
using std::min;
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}
inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
