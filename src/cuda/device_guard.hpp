// Makes a device current for a scope.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"

namespace moe_ep::cuda {

class DeviceGuard {
 public:
  // @throws MoEEpError if there is no such device
  explicit DeviceGuard(int device) {
    MOE_EP_CUDA_CHECK(cudaGetDevice(&before_));
    MOE_EP_CUDA_CHECK(cudaSetDevice(device));
  }
  ~DeviceGuard() { cudaSetDevice(before_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

}  // namespace moe_ep::cuda
