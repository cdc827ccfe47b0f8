// What the platform learns of the emulated machine from driver and NVML: GPUs that are fit.
#include "cuda/driver.hpp"
#include "cuda/nvml.hpp"
#include "machine.hpp"

namespace moe_ep::cuda {

const Driver& Driver::get() {
  static const Driver driver{[](CUcontext* context) {
    static const char primary = 0;
    *context = emulator::has_current_context() ? &primary : nullptr;
    return CUDA_SUCCESS;
  }};
  return driver;
}

PlatformFacts read_platform() {
  return {};
}

std::string explain(const PlatformFacts&, int) {
  return {};
}

}  // namespace moe_ep::cuda
