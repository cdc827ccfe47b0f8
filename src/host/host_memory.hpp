// HostMemory: the protocol's Memory concept on CPUs. Rows are plain copies, so that ThreadSanitizer
// sees a missing release; words go through std::atomic_ref.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "host/kernels.hpp"
#include "host/lamport_words.hpp"
#include "protocol/concepts.hpp"

namespace moe_ep::host {

// Tells the core that this thread spins, without leaving it.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A wait's `polls`-th pause: spin a little while, because a peer on its own core answers within a
// microsecond, then yield, because the peer may need this core.
inline void spin_pause(std::uint32_t polls) {
  constexpr std::uint32_t kSpins = 64;
  if (polls < kSpins) {
    cpu_relax();
  } else {
    ::sched_yield();
  }
}

struct HostMemory {
  using Copy = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);

  Copy copy;

  void copy_row(std::byte* to, const std::byte* from, std::int64_t bytes) const {
    copy(to, from, static_cast<std::size_t>(bytes));
  }

  void store_release(std::uint32_t* word, std::uint32_t value) const {
    std::atomic_ref<std::uint32_t>(*word).store(value, std::memory_order_release);
  }
  std::uint32_t load_acquire(const std::uint32_t* word) const {
    return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(word))
        .load(std::memory_order_acquire);
  }
  void store_relaxed(std::uint32_t* word, std::uint32_t value) const {
    std::atomic_ref<std::uint32_t>(*word).store(value, std::memory_order_relaxed);
  }
  std::uint32_t load_relaxed(const std::uint32_t* word) const {
    return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(word))
        .load(std::memory_order_relaxed);
  }

  // Pairs with load_acquire of a counter.
  void add_release(std::uint64_t* counter, std::uint64_t bytes) const {
    std::atomic_ref<std::uint64_t>(*counter).fetch_add(bytes, std::memory_order_release);
  }
  // Pairs with add_release.
  std::uint64_t load_acquire(const std::uint64_t* counter) const {
    return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(counter))
        .load(std::memory_order_acquire);
  }

  // Tags release and acquire, so that re-armed words and results follow them from phase to phase.
  void store_tag(std::uint64_t* tag, std::uint64_t value) const {
    // Pairs with load_tag.
    std::atomic_ref<std::uint64_t>(*tag).store(value, std::memory_order_release);
  }
  std::uint64_t load_tag(const std::uint64_t* tag) const {
    // Pairs with store_tag.
    return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(tag))
        .load(std::memory_order_acquire);
  }
  void put_words(std::uint32_t* landing, const std::byte* from, std::int64_t count,
                 protocol::DataWords words) const {
    put_landing_words(landing, from, count, words);
  }
  std::int64_t take_words(std::byte* to, std::uint32_t* landing, std::int64_t count,
                          std::uint32_t sentinel) const {
    return take_landing_words(to, landing, count, sentinel);
  }

  std::uint64_t now_ns() const {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
  }
  void pause(std::uint32_t polls) const { spin_pause(polls); }
};

static_assert(protocol::TagMemory<HostMemory> && protocol::CounterMemory<HostMemory>);

}  // namespace moe_ep::host
