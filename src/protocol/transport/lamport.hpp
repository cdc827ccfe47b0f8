// Lamport words: every word that travels says by itself whether it has arrived.
//
// Data words (rows of hidden_states and of combine) land in words armed with a sentinel that no
// payload word equals (sentinel.hpp). The receiver polls a word until it is not the sentinel, takes
// it and arms it again. Every 32-bit word is looked at on its own: whatever order a vector's words
// arrive in, none is taken before it is there.
//
// Tags are 64-bit words {epoch, value}. Every bit of a value survives; a tag of an earlier step does
// not pass for one of this step, so tags are never armed. Ids, weights, scales, the step signature
// and a phase's announcement travel as tags.
//
// Who orders what: data words are relaxed. A word is armed again by its reader and written again by
// its writer one or more steps later; that the two do not cross is the tags' doing (TagMemory), see
// lamport_step.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/concepts.hpp"
#include "protocol/epoch.hpp"
#include "protocol/transport/sentinel.hpp"
#include "protocol/wait.hpp"

namespace moe_ep::protocol {

// Byte-wise, because rows of users and results need no alignment.
MOE_EP_HD inline std::uint32_t load_bytes(const std::byte* from, std::int64_t bytes) {
  std::uint32_t word = 0;
  for (std::int64_t at = 0; at < bytes; ++at)
    word |= static_cast<std::uint32_t>(from[at]) << (8 * at);
  return word;
}
MOE_EP_HD inline void store_bytes(std::byte* to, std::uint32_t word, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; ++at)
    to[at] = static_cast<std::byte>(word >> (8 * at));
}

// Puts `count` whole words into landing words. A Memory may bring a faster put_words of its own.
template <Memory M>
MOE_EP_HD void put_words(M& memory, std::uint32_t* landing, const std::byte* from,
                         std::int64_t count, DataWords words) {
  if constexpr (requires { memory.put_words(landing, from, count, words); }) {
    memory.put_words(landing, from, count, words);
  } else {
    for (std::int64_t word = 0; word < count; ++word) {
      memory.store_relaxed(landing + word, canonical(load_bytes(from + 4 * word, 4), words));
    }
  }
}

// Takes words up to the first that has not arrived, arms them again, and returns how many.
template <Memory M>
MOE_EP_HD std::int64_t take_words(M& memory, std::byte* to, std::uint32_t* landing,
                                  std::int64_t count, std::uint32_t sentinel) {
  if constexpr (requires { memory.take_words(to, landing, count, sentinel); }) {
    return memory.take_words(to, landing, count, sentinel);
  } else {
    for (std::int64_t word = 0; word < count; ++word) {
      const std::uint32_t value = memory.load_relaxed(landing + word);
      if (value == sentinel) return word;
      memory.store_relaxed(landing + word, sentinel);
      store_bytes(to + 4 * word, value, 4);
    }
    return count;
  }
}

// Puts a row of `bytes` into its landing row, which starts at a word.
template <Memory M>
MOE_EP_HD void put_data_row(M& memory, std::byte* landing, const std::byte* from,
                            std::int64_t bytes, DataWords words) {
  auto* to = reinterpret_cast<std::uint32_t*>(landing);
  const std::int64_t whole = bytes / 4;
  put_words(memory, to, from, whole, words);
  if (bytes > 4 * whole)
    memory.store_relaxed(to + whole, load_bytes(from + 4 * whole, bytes - 4 * whole));
}

// Takes the row when it has arrived, re-armed. False: the time is up; some words may be taken.
template <Memory M>
MOE_EP_HD bool take_data_row(M& memory, std::byte* to, std::byte* landing, std::int64_t bytes,
                             DataWords words, std::uint64_t deadline_ns) {
  auto* from = reinterpret_cast<std::uint32_t*>(landing);
  const std::uint32_t sentinel = sentinel_of(words);
  const std::int64_t whole = bytes / 4;
  std::int64_t taken = 0;
  const bool arrived = wait_until(memory, deadline_ns, [&] {
    taken += take_words(memory, to + 4 * taken, from + taken, whole - taken, sentinel);
    return taken == whole;
  });
  if (!arrived || bytes == 4 * whole) return arrived;
  std::uint32_t tail = sentinel;
  const bool complete = wait_until(memory, deadline_ns, [&] {
    tail = memory.load_relaxed(from + whole);
    return tail != sentinel;
  });
  if (!complete) return false;
  memory.store_relaxed(from + whole, sentinel);
  store_bytes(to + 4 * whole, tail, bytes - 4 * whole);
  return true;
}

MOE_EP_HD constexpr std::uint64_t make_tag(Epoch epoch, std::uint32_t value) {
  return static_cast<std::uint64_t>(epoch) << 32 | value;
}
MOE_EP_HD constexpr Epoch tag_epoch(std::uint64_t tag) {
  return static_cast<Epoch>(tag >> 32);
}
MOE_EP_HD constexpr std::uint32_t tag_value(std::uint64_t tag) {
  return static_cast<std::uint32_t>(tag);
}

// Waits for the tag of this epoch.
template <TagMemory M>
MOE_EP_HD bool take_tag(M& memory, const std::uint64_t* tag, Epoch epoch, std::uint64_t deadline_ns,
                        std::uint32_t& value) {
  std::uint64_t got = 0;
  const bool arrived = wait_until(memory, deadline_ns, [&] {
    got = memory.load_tag(tag);
    return tag_epoch(got) == epoch;
  });
  value = tag_value(got);
  return arrived;
}

// A row of bytes as tags, 4 bytes each.
template <TagMemory M>
MOE_EP_HD void put_tag_row(M& memory, std::uint64_t* tags, const std::byte* from,
                           std::int64_t bytes, Epoch epoch) {
  for (std::int64_t at = 0; at < bytes; at += 4) {
    const std::int64_t size = bytes - at < 4 ? bytes - at : 4;
    memory.store_tag(tags++, make_tag(epoch, load_bytes(from + at, size)));
  }
}
template <TagMemory M>
MOE_EP_HD bool take_tag_row(M& memory, std::byte* to, const std::uint64_t* tags, std::int64_t bytes,
                            Epoch epoch, std::uint64_t deadline_ns) {
  for (std::int64_t at = 0; at < bytes; at += 4) {
    std::uint32_t value = 0;
    if (!take_tag(memory, tags++, epoch, deadline_ns, value)) return false;
    store_bytes(to + at, value, bytes - at < 4 ? bytes - at : 4);
  }
  return true;
}

}  // namespace moe_ep::protocol
