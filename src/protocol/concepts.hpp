// The concepts that carry the difference between a CPU and a GPU.
//
// Coop    who works together on one rank's step: one thread, a team of threads, a block.
// Memory  how shared words and rows are touched. Three access classes:
//           rows      plain copies; ordered by the flag that follows them
//           relaxed   single words that carry their own meaning (Lamport)
//           flags     32-bit words, store_release / load_acquire, system scope
//         plus the clock and the polite pause that bounded waits need.
//
// Protocol functions are templates over both, so that the simulator, the host and device code run
// the same text.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <moe_ep/types.hpp>

namespace moe_ep::protocol {

// clang-format off
template <class C>
concept Coop = requires(C& coop) {
  { coop.thread_rank() } -> std::convertible_to<int>;
  { coop.size() } -> std::convertible_to<int>;
  coop.sync();
};

template <class M>
concept Memory = requires(M& memory, std::byte* to, const std::byte* from, std::int64_t bytes,
                          std::uint32_t* flag, const std::uint32_t* const_flag,
                          std::uint32_t value) {
  memory.copy_row(to, from, bytes);
  memory.store_release(flag, value);
  { memory.load_acquire(const_flag) } -> std::convertible_to<std::uint32_t>;
  memory.store_relaxed(flag, value);
  { memory.load_relaxed(const_flag) } -> std::convertible_to<std::uint32_t>;
  { memory.now_ns() } -> std::convertible_to<std::uint64_t>;
  memory.pause(value);
};

// Adds the 64-bit words of Lamport steps, {epoch, value} (transport/lamport.hpp). A tag word is
// written whole or not at all, and carries an edge from phase to phase: what the writer did in
// earlier phases of its steps happens before what the reader does in later phases of its own. Hosts
// release and acquire with every tag; on devices the ends of the kernels around it do.
template <class M>
concept TagMemory = Memory<M> && requires(M& memory, std::uint64_t* tag,
                                          const std::uint64_t* const_tag, std::uint64_t value) {
  memory.store_tag(tag, value);
  { memory.load_tag(const_tag) } -> std::convertible_to<std::uint64_t>;
};

// Adds the 64-bit counters of counted writes (transport/counted.hpp).
template <class M>
concept CounterMemory = Memory<M> && requires(M& memory, std::uint64_t* counter,
                                              const std::uint64_t* const_counter,
                                              std::uint64_t bytes) {
  memory.add_release(counter, bytes);
  { memory.load_acquire(const_counter) } -> std::convertible_to<std::uint64_t>;
};
// clang-format on

}  // namespace moe_ep::protocol
