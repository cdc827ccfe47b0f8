// The driver functions that the runtime does not offer, taken at run time: nothing links libcuda,
// so that the library loads on machines without a driver.
#pragma once

#include <cuda.h>

#include <string>
#include <string_view>

#include <moe_ep/error.hpp>

namespace moe_ep::cuda {

// X(name, version of the entry point)
#define MOE_EP_FOR_EACH_DRIVER_FUNCTION(X) \
  X(cuGetErrorName, 6000)                  \
  X(cuGetErrorString, 6000)                \
  X(cuCtxGetCurrent, 4000)                 \
  X(cuDeviceGet, 2000)                     \
  X(cuDeviceGetAttribute, 2000)            \
  X(cuMemAddressReserve, 10020)            \
  X(cuMemAddressFree, 10020)               \
  X(cuMemCreate, 10020)                    \
  X(cuMemRelease, 10020)                   \
  X(cuMemMap, 10020)                       \
  X(cuMemUnmap, 10020)                     \
  X(cuMemSetAccess, 10020)                 \
  X(cuMemGetAllocationGranularity, 10020)  \
  X(cuMemExportToShareableHandle, 10020)   \
  X(cuMemImportFromShareableHandle, 10020)

struct Driver {
#define MOE_EP_MEMBER(name, version) decltype(&::name) name = nullptr;
  MOE_EP_FOR_EACH_DRIVER_FUNCTION(MOE_EP_MEMBER)
#undef MOE_EP_MEMBER
  std::string missing;  // why the table is not complete; empty if it is

  // Looks the functions up on first use.
  // @throws MoEEpError with the reason if one is missing
  static const Driver& get();
  // The same without throwing.
  static const Driver& look();

  // "cuMemCreate failed with CUDA driver error 2 (CUDA_ERROR_OUT_OF_MEMORY: out of memory)"
  std::string call_text(std::string_view call, CUresult result) const;
  void check(CUresult result, std::string_view call) const {
    if (result != CUDA_SUCCESS) throw MoEEpError(call_text(call, result));
  }
};

}  // namespace moe_ep::cuda

// MOE_EP_DRIVER_CHECK(driver, cuMemCreate, &handle, bytes, &properties, 0);
#define MOE_EP_DRIVER_CHECK(driver, name, ...) (driver).check((driver).name(__VA_ARGS__), #name)
