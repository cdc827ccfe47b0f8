// How a failed CUDA call becomes an exception.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include <moe_ep/error.hpp>

namespace moe_ep::cuda {

// "cudaMalloc failed with CUDA error 2 (cudaErrorMemoryAllocation: out of memory)"
inline std::string call_text(std::string_view call, cudaError_t error) {
  const std::string_view name = call.substr(0, call.find('('));
  return std::string(name) + " failed with CUDA error " + std::to_string(static_cast<int>(error)) +
         " (" + cudaGetErrorName(error) + ": " + cudaGetErrorString(error) + ")";
}

// Throws unless `error` is success. The runtime also keeps the error for whoever asks next; that
// must not be somebody else's code, so it is taken back here.
inline void check(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw MoEEpError(call_text(call, error));
}

}  // namespace moe_ep::cuda

// MOE_EP_CUDA_CHECK(cudaMalloc(&pointer, bytes)); throws MoEEpError with the call's name and the
// code.
#define MOE_EP_CUDA_CHECK(call) ::moe_ep::cuda::check((call), #call)
