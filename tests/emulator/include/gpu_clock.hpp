// Twin of tests/cuda/clock/gpu_clock.hpp: the emulated machine's virtual time.
#pragma once

#include <chrono>

#include "machine_calls.hpp"

namespace moe_ep::testing {

struct GpuClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<GpuClock>;
  static constexpr bool is_steady = true;
  static time_point now() { return time_point(duration(static_cast<rep>(emulator::now()))); }
};

}  // namespace moe_ep::testing
