// The clock that kernels time their waits by, seen from the host. The emulator has another.
#pragma once

#include <chrono>

namespace moe_ep::testing {

using GpuClock = std::chrono::steady_clock;

}  // namespace moe_ep::testing
