// Every instruction of the library that has no name in C++: all inline PTX is in this file.
//
// The emulator of the tests has a twin of it (tests/emulator), which is why it is a file of its
// own. The instructions and their meaning: PTX ISA 9.0. Words that cross ranks have system scope: a
// peer may be another GPU ("Memory Consistency Model": scopes, release and acquire patterns).
#pragma once

#include <cstddef>
#include <cstdint>

namespace moe_ep::cuda {

// All that this thread did or has observed, before all that it does next, for every observer.
__device__ __forceinline__ void fence_sys() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

__device__ __forceinline__ void store_release(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ void store_release(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ std::uint64_t load_acquire(const std::uint64_t* word) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ std::uint32_t load_relaxed(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ std::uint64_t load_relaxed(const std::uint64_t* word) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

// Words next to each other, each on its own: they may arrive one after the other.
__device__ __forceinline__ void load_words(std::uint32_t (&words)[1], const std::byte* from) {
  words[0] = load_relaxed(reinterpret_cast<const std::uint32_t*>(from));
}
__device__ __forceinline__ void load_words(std::uint32_t (&words)[2], const std::byte* from) {
  asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ void load_words(std::uint32_t (&words)[4], const std::byte* from) {
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ void store_words(std::byte* to, const std::uint32_t (&words)[1]) {
  store_relaxed(reinterpret_cast<std::uint32_t*>(to), words[0]);
}
__device__ __forceinline__ void store_words(std::byte* to, const std::uint32_t (&words)[2]) {
  asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(words[0]),
               "r"(words[1])
               : "memory");
}
__device__ __forceinline__ void store_words(std::byte* to, const std::uint32_t (&words)[4]) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// `Width` bytes of a row, in the lowest bytes of the group.
//
// Loads bypass L1: rows are read once, and rows of peers must not be found there. Loads, too,
// clobber memory for the compiler: it then keeps them behind the barrier or the wait that they
// depend on.
template <int Width>
__device__ __forceinline__ uint4 load_vector(const std::byte* from) {
  uint4 v{};
  if constexpr (Width == 16) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
  } else if constexpr (Width == 8) {
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(from)
                 : "memory");
  } else if constexpr (Width == 4) {
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v.x) : "l"(from) : "memory");
  } else if constexpr (Width == 2) {
    std::uint16_t narrow;
    asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(narrow) : "l"(from) : "memory");
    v.x = narrow;
  } else {
    std::uint16_t narrow;
    asm volatile("ld.global.L1::no_allocate.u8 %0, [%1];" : "=h"(narrow) : "l"(from) : "memory");
    v.x = narrow;
  }
  return v;
}

template <int Width>
__device__ __forceinline__ void store_vector(std::byte* to, const uint4& v) {
  if constexpr (Width == 16) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
  } else if constexpr (Width == 8) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
  } else if constexpr (Width == 4) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(v.x) : "memory");
  } else if constexpr (Width == 2) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(static_cast<std::uint16_t>(v.x))
                 : "memory");
  } else {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "h"(static_cast<std::uint16_t>(v.x))
                 : "memory");
  }
}

// Adds one to a counter of this device; returns what it held. Orders nothing: fences do.
__device__ __forceinline__ std::uint32_t count_up(std::uint32_t* counter) {
  std::uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

// Programmatic dependent launch. wait_for_producers() comes before every access to memory that an
// earlier kernel of the stream may write or read: it returns when they have completed.
__device__ __forceinline__ void wait_for_producers() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ std::uint64_t clock_ns() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

// The compiler forgets what it knows about `value`: it is made here, not where it is used.
__device__ __forceinline__ void forget(std::int32_t& value) {
  asm volatile("" : "+r"(value));
}
__device__ __forceinline__ void forget(std::uint32_t& value) {
  asm volatile("" : "+r"(value));
}
__device__ __forceinline__ void forget(std::int64_t& value) {
  asm volatile("" : "+l"(value));
}
template <class T>
__device__ __forceinline__ void forget(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}

}  // namespace moe_ep::cuda
