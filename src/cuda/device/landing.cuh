// Words of Lamport rows: how they are sent, polled and armed again
// (protocol/transport/lamport.hpp).
//
// A lane holds 8 bytes of a row, or 4 where something is aligned to less. Each 32-bit word is
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

// `bytes` (1 to 4) of a user's row, aligned to `width`, as a word.
__device__ __forceinline__ std::uint32_t load_word(const std::byte* from, std::uint32_t bytes,
                                                   std::int32_t width) {
  if (width == 4 && bytes == 4) {
    return load_relaxed(reinterpret_cast<const std::uint32_t*>(from));
  }
  return protocol::load_bytes(from, bytes);
}
__device__ __forceinline__ void store_word(std::byte* to, std::uint32_t word, std::uint32_t bytes,
                                           std::int32_t width) {
  if (width == 4 && bytes == 4) {
    *reinterpret_cast<std::uint32_t*>(to) = word;
  } else {
    protocol::store_bytes(to, word, bytes);
  }
}

// A lane's part of a row: 8 bytes where kWide, else up to 4. Rows of users and results are `row`
// and aligned to `width`; landing rows are aligned to 16. `left` is what the row has from here on.
template <bool kWide>
struct LaneWords {
  static constexpr std::uint32_t kBytes = kWide ? 8 : 4;

  uint2 words;

  __device__ __forceinline__ void load_row(const std::byte* row, std::uint32_t left,
                                           std::int32_t width) {
    if constexpr (kWide) {
      words = load_words(row);
    } else {
      words.x = load_word(row, left < 4 ? left : 4, width);
    }
  }
  __device__ __forceinline__ void store_row(std::byte* row, std::uint32_t left,
                                            std::int32_t width) const {
    if constexpr (kWide) {
      store_vector<8>(row, make_uint4(words.x, words.y, 0, 0));
    } else {
      store_word(row, words.x, left < 4 ? left : 4, width);
    }
  }
  // As the words travel.
  __device__ __forceinline__ LaneWords sendable(protocol::DataWords kind) const {
    return {make_uint2(protocol::canonical(words.x, kind), protocol::canonical(words.y, kind))};
  }
  __device__ __forceinline__ void send(std::byte* landing) const {
    if constexpr (kWide) {
      store_words(landing, words);
    } else {
      store_relaxed(reinterpret_cast<std::uint32_t*>(landing), words.x);
    }
  }
  __device__ __forceinline__ void poll(const std::byte* landing) {
    if constexpr (kWide) {
      words = load_words(landing);
    } else {
      words.x = load_relaxed(reinterpret_cast<const std::uint32_t*>(landing));
    }
  }
  __device__ __forceinline__ bool arrived(std::uint32_t sentinel) const {
    return words.x != sentinel && (!kWide || words.y != sentinel);
  }
  static __device__ __forceinline__ void arm(std::byte* landing, std::uint32_t sentinel) {
    LaneWords{make_uint2(sentinel, sentinel)}.send(landing);
  }
};

}  // namespace moe_ep::cuda
