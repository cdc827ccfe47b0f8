// Devices, texts and entry points of the double.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "cuda/driver.hpp"
#include "cuda/nvml.hpp"
#include "driver_double.hpp"

namespace {

using namespace moe_ep::testing;

constexpr int kNumDevices = 4;
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

bool exists(int device) {
  return device >= 0 && device < kNumDevices;
}

std::set<std::string>& hidden_names() {
  static std::set<std::string> names;
  return names;
}

}  // namespace

void moe_ep::testing::hide_entry_point(const std::string& name) {
  hidden_names().insert(name);
}

// NVML: every GPU is linked with every other one.
moe_ep::cuda::GpuLink moe_ep::cuda::link_between(const std::string&, const std::string&) {
  return GpuLink::kNvlink;
}

CUresult cuGetErrorName(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_INVALID_VALUE    ? "CUDA_ERROR_INVALID_VALUE"
          : result == CUDA_ERROR_OUT_OF_MEMORY  ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == CUDA_ERROR_INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE"
          : result == CUDA_ERROR_NOT_PERMITTED  ? "CUDA_ERROR_NOT_PERMITTED"
                                                : "CUDA_SUCCESS";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "refused by the double";
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return exists(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (is_refused("cuDeviceGetAttribute")) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute != CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED ||
           fabric_here() != Fabric::kNoAttribute;
  return CUDA_SUCCESS;
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "refused by the double";
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (is_refused("cudaGetDeviceProperties")) return answer(cudaErrorMemoryAllocation);
  if (!exists(device)) return answer(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "double %d", device);
  properties->uuid.bytes[0] = static_cast<char>(device);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  if (is_refused("cudaGetDevice")) return answer(cudaErrorMemoryAllocation);
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (is_refused("cudaSetDevice")) return answer(cudaErrorMemoryAllocation);
  if (!exists(device)) return answer(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return answer(is_refused("cudaDeviceSynchronize") ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  if (is_refused("cudaMemset")) return answer(cudaErrorMemoryAllocation);
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
#define MOE_EP_FIND(known, version) \
  if (std::strcmp(name, #known) == 0) *function = reinterpret_cast<void*>(&::known);
  MOE_EP_FOR_EACH_DRIVER_FUNCTION(MOE_EP_FIND)
#undef MOE_EP_FIND
  if (hidden_names().contains(name)) *function = nullptr;
  *result = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
