// Shared memory of a block. As functions, because the emulator of the tests (tests/emulator) has to
// find the block of the thread that asks.
#pragma once

#include <cstddef>

namespace moe_ep::cuda {

// The block's one object of type T, not initialised. All calls for one T in a kernel give the same.
template <class T>
__device__ __forceinline__ T& shared_object() {
  __shared__ T object;
  return object;
}

// The memory whose size the launch names, as elements of type T.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(16) std::byte dynamic_bytes[];
  return reinterpret_cast<T*>(dynamic_bytes);
}

}  // namespace moe_ep::cuda
