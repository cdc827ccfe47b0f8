// Landing words of Lamport rows, 8 bytes at a time. Both halves are looked at, each on its own:
// what counts is that no word is taken before it is there, not that 8 bytes arrive together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "protocol/transport/sentinel.hpp"

namespace moe_ep::host {

inline std::uint64_t load_two(const std::uint32_t* landing) {
  return std::atomic_ref<std::uint64_t>(
             *reinterpret_cast<std::uint64_t*>(const_cast<std::uint32_t*>(landing)))
      .load(std::memory_order_relaxed);
}
inline void store_two(std::uint32_t* landing, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(landing))
      .store(value, std::memory_order_relaxed);
}
inline bool has_word(std::uint64_t two, std::uint32_t word) {
  return static_cast<std::uint32_t>(two) == word || static_cast<std::uint32_t>(two >> 32) == word;
}

// protocol::put_words. `landing` starts at 8 bytes, `from` anywhere.
inline void put_landing_words(std::uint32_t* landing, const std::byte* from, std::int64_t count,
                              protocol::DataWords words) {
  using protocol::canonical;
  const std::uint32_t sentinel = protocol::sentinel_of(words);
  std::int64_t at = 0;
  for (; at + 2 <= count; at += 2) {
    std::uint64_t two;
    std::memcpy(&two, from + 4 * at, sizeof two);
    if (has_word(two, sentinel)) [[unlikely]] {
      two = std::uint64_t{canonical(static_cast<std::uint32_t>(two >> 32), words)} << 32 |
            canonical(static_cast<std::uint32_t>(two), words);
    }
    store_two(landing + at, two);
  }
  if (at < count) {
    std::uint32_t word;
    std::memcpy(&word, from + 4 * at, sizeof word);
    std::atomic_ref<std::uint32_t>(landing[at])
        .store(canonical(word, words), std::memory_order_relaxed);
  }
}

// protocol::take_words. Any `landing`: a row may be taken in several goes.
inline std::int64_t take_landing_words(std::byte* to, std::uint32_t* landing, std::int64_t count,
                                       std::uint32_t sentinel) {
  const std::uint64_t armed = std::uint64_t{sentinel} << 32 | sentinel;
  const auto take_one = [&](std::int64_t at) {
    const std::atomic_ref<std::uint32_t> word(landing[at]);
    const std::uint32_t value = word.load(std::memory_order_relaxed);
    if (value == sentinel) return false;
    word.store(sentinel, std::memory_order_relaxed);
    std::memcpy(to + 4 * at, &value, sizeof value);
    return true;
  };
  std::int64_t at = 0;
  if (count > 0 && reinterpret_cast<std::uintptr_t>(landing) % 8 != 0) {
    if (!take_one(0)) return 0;
    at = 1;
  }
  for (; at + 2 <= count; at += 2) {
    const std::uint64_t two = load_two(landing + at);
    if (has_word(two, sentinel)) break;
    store_two(landing + at, armed);
    std::memcpy(to + 4 * at, &two, sizeof two);
  }
  while (at < count && take_one(at))
    ++at;
  return at;
}

}  // namespace moe_ep::host
