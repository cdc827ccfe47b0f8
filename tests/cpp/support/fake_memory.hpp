// The protocol's Memory concept for tests in one thread: plain words, and a clock that only pauses
// move. What happens while somebody waits is up to `on_pause`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "protocol/concepts.hpp"

namespace moe_ep::testing {

struct FakeMemory {
  std::uint64_t clock_ns = 0;
  std::uint64_t ns_per_pause = 1000;
  std::function<void(std::uint32_t polls)> on_pause = {};

  std::uint64_t num_pauses = 0;
  std::uint64_t num_clock_reads = 0;
  std::uint64_t num_rows = 0;

  void copy_row(std::byte* to, const std::byte* from, std::int64_t bytes) {
    ++num_rows;
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void store_release(std::uint32_t* word, std::uint32_t value) { *word = value; }
  std::uint32_t load_acquire(const std::uint32_t* word) { return *word; }
  void store_relaxed(std::uint32_t* word, std::uint32_t value) { *word = value; }
  std::uint32_t load_relaxed(const std::uint32_t* word) { return *word; }
  void add_release(std::uint64_t* counter, std::uint64_t bytes) { *counter += bytes; }
  std::uint64_t load_acquire(const std::uint64_t* counter) { return *counter; }
  void store_tag(std::uint64_t* tag, std::uint64_t value) { *tag = value; }
  std::uint64_t load_tag(const std::uint64_t* tag) { return *tag; }
  std::uint64_t now_ns() {
    ++num_clock_reads;
    return clock_ns;
  }
  void pause(std::uint32_t polls) {
    ++num_pauses;
    clock_ns += ns_per_pause;
    if (on_pause) on_pause(polls);
  }
};

static_assert(protocol::TagMemory<FakeMemory> && protocol::CounterMemory<FakeMemory>);

// One thread on its own.
struct FakeCoop {
  int thread_rank() const { return 0; }
  int size() const { return 1; }
  void sync() const {}
};

static_assert(protocol::Coop<FakeCoop>);

}  // namespace moe_ep::testing
