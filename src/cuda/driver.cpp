#include "cuda/driver.hpp"

#include <cuda_runtime_api.h>

namespace moe_ep::cuda {
namespace {

// The entry point, or null and a reason.
void* find(const char* name, unsigned version, std::string& reason) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &result);
  if (error != cudaSuccess) {
    cudaGetLastError();
    reason = std::string("cudaGetDriverEntryPointByVersion(") + name + ") failed with CUDA error " +
             std::to_string(static_cast<int>(error)) + " (" + cudaGetErrorString(error) + ")";
    return nullptr;
  }
  if (result == cudaDriverEntryPointSuccess && function != nullptr) return function;
  reason = std::string("the driver has no ") + name +
           (result == cudaDriverEntryPointVersionNotSufficent ? " (it is too old)" : "");
  return nullptr;
}

Driver load() {
  Driver driver;
#define MOE_EP_LOAD(name, version)                                                               \
  if (driver.missing.empty()) {                                                                  \
    driver.name = reinterpret_cast<decltype(driver.name)>(find(#name, version, driver.missing)); \
  }
  MOE_EP_FOR_EACH_DRIVER_FUNCTION(MOE_EP_LOAD)
#undef MOE_EP_LOAD
  return driver;
}

}  // namespace

const Driver& Driver::look() {
  static const Driver driver = load();
  return driver;
}

const Driver& Driver::get() {
  const Driver& driver = look();
  if (!driver.missing.empty()) throw MoEEpError("CUDA driver: " + driver.missing);
  return driver;
}

std::string Driver::call_text(std::string_view call, CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &text);
  return std::string(call) + " failed with CUDA driver error " +
         std::to_string(static_cast<int>(result)) + " (" +
         (name != nullptr ? name : "unknown error") + ": " + (text != nullptr ? text : "") + ")";
}

}  // namespace moe_ep::cuda
