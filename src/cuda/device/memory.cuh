// How a kernel touches words that other ranks read or write, and the clock of its waits.
//
// Every word that crosses ranks goes through the functions of ptx.cuh, with system scope. Causality
// order is transitive (PTX ISA 9.0, "Memory Consistency Model"): a barrier of the block followed by
// one thread's fence_sys() orders the stores of all threads of the block before that thread's flag.
//
// A flag and what it announces are one aligned 64-bit word where they can be (PeerLine): a single
// 64-bit access is atomic, so the announcement needs no fence of its own.
#pragma once

#include <cstdint>

#include "cuda/device/ptx.cuh"
#include "protocol/epoch.hpp"

namespace moe_ep::cuda {

using protocol::Epoch;

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

}  // namespace moe_ep::cuda
