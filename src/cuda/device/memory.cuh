// How a kernel touches words that other ranks read or write, and the clock of its waits.
//
// Every word that crosses ranks goes through here with system scope: a peer may be another GPU. The
// instructions and their meaning: PTX ISA 9.0, "Memory Consistency Model" (scopes, release and
// acquire patterns, and causality order, which is transitive: a barrier of the block followed by
// one thread's fence_sys() orders the stores of all threads of the block before that thread's
// flag).
//
// A flag and what it announces are one aligned 64-bit word where they can be (PeerLine): a single
// 64-bit access is atomic, so the announcement needs no fence of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/epoch.hpp"

namespace moe_ep::cuda {

using protocol::Epoch;

// All that this thread did or has observed, before all that it does next, for every observer.
__device__ __forceinline__ void fence_sys() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

__device__ __forceinline__ void store_release(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ void store_release(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ std::uint64_t load_acquire(const std::uint64_t* word) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ std::uint32_t load_relaxed(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// A flag with what it announces: the flag is the lower half (little endian).
__device__ __forceinline__ std::uint64_t tagged(Epoch epoch, std::uint32_t value) {
  return static_cast<std::uint64_t>(value) << 32 | epoch;
}
__device__ __forceinline__ std::uint64_t* tagged_word(std::uint32_t* flag) {
  return reinterpret_cast<std::uint64_t*>(flag);
}
__device__ __forceinline__ std::uint32_t tag_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word);
}
__device__ __forceinline__ std::uint32_t value_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}

__device__ __forceinline__ void store_relaxed(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// Adds one to a counter of this device; returns what it held. Orders nothing: fences do.
__device__ __forceinline__ std::uint32_t count_up(std::uint32_t* counter) {
  std::uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

// Programmatic dependent launch. wait_for_producers() comes before every access to memory that an
// earlier kernel of the stream may write or read: it returns when they have completed.
__device__ __forceinline__ void wait_for_producers() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ std::uint64_t clock_ns() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace moe_ep::cuda
