// Twin of src/cuda/device/shared.cuh for the emulator.
#pragma once

#include <type_traits>

#include "machine_calls.hpp"

namespace moe_ep::cuda {

template <class T>
T& shared_object() {
  static_assert(std::is_trivially_default_constructible_v<T> &&
                std::is_trivially_destructible_v<T>);
  static const char tag = 0;
  return *static_cast<T*>(emulator::shared_memory(&tag, sizeof(T)));
}

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(emulator::dynamic_shared_memory());
}

}  // namespace moe_ep::cuda
