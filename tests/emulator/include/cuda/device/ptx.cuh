// Twin of src/cuda/device/ptx.cuh for the emulator: memory is sequentially consistent, and what
// crosses ranks is where threads take turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <cuda_runtime.h>

namespace moe_ep::cuda {

namespace detail {

template <std::size_t Bytes>
void expect_aligned(const void* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % Bytes != 0) emulator::fault("misaligned access");
}
template <class T>
void store(T* word, T value) {
  expect_aligned<sizeof(T)>(word);
  emulator::maybe_yield();
  emulator::act();
  *word = value;
}
template <class T>
T load(const T* word) {
  expect_aligned<sizeof(T)>(word);
  emulator::yield();
  return *word;
}

}  // namespace detail

inline void fence_sys() {}

inline void store_release(std::uint32_t* word, std::uint32_t value) {
  detail::store(word, value);
}
inline void store_release(std::uint64_t* word, std::uint64_t value) {
  detail::store(word, value);
}
inline void store_relaxed(std::uint32_t* word, std::uint32_t value) {
  detail::store(word, value);
}
inline void store_relaxed(std::uint64_t* word, std::uint64_t value) {
  detail::store(word, value);
}
inline std::uint32_t load_acquire(const std::uint32_t* word) {
  return detail::load(word);
}
inline std::uint64_t load_acquire(const std::uint64_t* word) {
  return detail::load(word);
}
inline std::uint32_t load_relaxed(const std::uint32_t* word) {
  return detail::load(word);
}

inline std::uint64_t load_relaxed(const std::uint64_t* word) {
  return detail::load(word);
}

// A thread may see, and show, one word of a vector before the other.
template <int Words>
void load_words(std::uint32_t (&words)[Words], const std::byte* from) {
  detail::expect_aligned<4 * Words>(from);
  const auto* at = reinterpret_cast<const std::uint32_t*>(from);
  words[0] = detail::load(at);
  for (int i = 1; i < Words; ++i) {
    emulator::maybe_yield();
    words[i] = at[i];
  }
}
template <int Words>
void store_words(std::byte* to, const std::uint32_t (&words)[Words]) {
  detail::expect_aligned<4 * Words>(to);
  for (int i = 0; i < Words; ++i)
    detail::store(reinterpret_cast<std::uint32_t*>(to) + i, words[i]);
}

template <int Width>
uint4 load_vector(const std::byte* from) {
  detail::expect_aligned<Width>(from);
  uint4 v{};
  std::memcpy(&v, from, Width);
  return v;
}
template <int Width>
void store_vector(std::byte* to, const uint4& v) {
  detail::expect_aligned<Width>(to);
  emulator::act();
  std::memcpy(to, &v, Width);
}

inline std::uint32_t count_up(std::uint32_t* counter) {
  emulator::maybe_yield();
  emulator::act();
  return (*counter)++;
}

inline void wait_for_producers() {
  emulator::await_producers();
}
inline void launch_dependents() {
  emulator::trigger_dependents();
}

inline std::uint64_t clock_ns() {
  return emulator::now();
}

template <class T>
void forget(T&) {}

}  // namespace moe_ep::cuda
