// HostMemory: the protocol's Memory concept on CPUs. Rows are plain copies, so that ThreadSanitizer
// sees a missing release; words go through std::atomic_ref.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "host/kernels.hpp"
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

  std::uint64_t now_ns() const {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
  }
  void pause(std::uint32_t polls) const { spin_pause(polls); }
};

static_assert(protocol::Memory<HostMemory>);

}  // namespace moe_ep::host
