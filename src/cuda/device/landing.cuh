// Words of Lamport rows: how they are sent, polled and armed again
// (protocol/transport/lamport.hpp).
//
// A lane holds 8 or 16 bytes of a row, or 4 where something is aligned to less. Each 32-bit word is
// looked at on its own, so a vector may arrive word by word. Rows of users are loaded as relaxed
// words: a plain load may sink behind the vote on the ids, which costs the latency of a load.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/memory.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/vector.cuh"
#include "protocol/transport/lamport.hpp"

namespace moe_ep::cuda {

// `bytes` (1 to 4) of a user's row, aligned to `width`, as a word. Single bytes go round a loop:
// its code would be in the way of what is common.
__device__ __forceinline__ std::uint32_t load_word(const std::byte* from, std::uint32_t bytes,
                                                   std::int32_t width) {
  if (width == 4 && bytes == 4) {
    return load_relaxed(reinterpret_cast<const std::uint32_t*>(from));
  }
  std::uint32_t word = 0;
#pragma unroll 1
  for (std::uint32_t at = 0; at < bytes; ++at)
    word |= static_cast<std::uint32_t>(from[at]) << (8 * at);
  return word;
}
__device__ __forceinline__ void store_word(std::byte* to, std::uint32_t word, std::uint32_t bytes,
                                           std::int32_t width) {
  if (width == 4 && bytes == 4) {
    *reinterpret_cast<std::uint32_t*>(to) = word;
    return;
  }
#pragma unroll 1
  for (std::uint32_t at = 0; at < bytes; ++at)
    to[at] = static_cast<std::byte>(word >> (8 * at));
}

// What an armed word holds, and what travels instead of a payload word that equals it.
struct Sentinel {
  std::uint32_t word = 0;
  std::uint32_t substitute = 0;

  static MOE_EP_HD constexpr Sentinel of(protocol::DataWords kind) {
    return {protocol::sentinel_of(kind), protocol::canonical(protocol::sentinel_of(kind), kind)};
  }
};

// A lane's part of a row: 16 or 8 bytes, or up to 4. Rows of users and results are `row` and
// aligned to `width`; landing rows are aligned to 16. `left` is what the row has from here on.
template <int Bytes>
struct LaneWords {
  static constexpr int kWords = Bytes / 4;

  std::uint32_t words[kWords];

  __device__ __forceinline__ void load_row(const std::byte* row, std::uint32_t left,
                                           std::int32_t width) {
    if constexpr (Bytes > 4) {
      load_words(words, row);
    } else {
      words[0] = load_word(row, left < 4 ? left : 4, width);
    }
  }
  __device__ __forceinline__ void store_row(std::byte* row, std::uint32_t left,
                                            std::int32_t width) const {
    if constexpr (Bytes > 4) {
      store_vector<Bytes>(row, group());
    } else {
      store_word(row, words[0], left < 4 ? left : 4, width);
    }
  }
  // As the words travel (protocol::canonical).
  __device__ __forceinline__ LaneWords sendable(const Sentinel& armed) const {
    LaneWords sent;
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      sent.words[i] = words[i] == armed.word ? armed.substitute : words[i];
    return sent;
  }
  __device__ __forceinline__ void send(std::byte* landing) const { store_words(landing, words); }
  __device__ __forceinline__ void poll(const std::byte* landing) { load_words(words, landing); }
  __device__ __forceinline__ bool arrived(std::uint32_t sentinel) const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      all = all && words[i] != sentinel;
    return all;
  }
  static __device__ __forceinline__ void arm(std::byte* landing, std::uint32_t sentinel) {
    LaneWords armed;
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      armed.words[i] = sentinel;
    armed.send(landing);
  }
  // The words in the lowest bytes of a register group.
  __device__ __forceinline__ uint4 group() const {
    uint4 group{};
    group.x = words[0];
    if constexpr (kWords > 1) group.y = words[1];
    if constexpr (kWords > 2) group.z = words[2];
    if constexpr (kWords > 3) group.w = words[3];
    return group;
  }
};

}  // namespace moe_ep::cuda
