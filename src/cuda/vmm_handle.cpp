#include "cuda/vmm_handle.hpp"

#include <cstring>
#include <utility>

namespace moe_ep::cuda {
namespace {

CUmemAllocationHandleType handle_types(HandleKind kind) {
  constexpr int kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  constexpr int kBoth = kFd | CU_MEM_HANDLE_TYPE_FABRIC;
  return static_cast<CUmemAllocationHandleType>(kind == HandleKind::kFabric ? kBoth : kFd);
}

}  // namespace

CUmemAllocationProp allocation_properties(int device, HandleKind kind) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = handle_types(kind);
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

VmmHandle::VmmHandle(VmmHandle&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}

VmmHandle& VmmHandle::operator=(VmmHandle&& other) noexcept {
  if (this != &other) {
    reset();
    handle_ = std::exchange(other.handle_, 0);
  }
  return *this;
}

void VmmHandle::reset() noexcept {
  // At the end of a process the driver may be gone, and the memory with it.
  if (handle_ != 0) Driver::look().cuMemRelease(handle_);
  handle_ = 0;
}

VmmHandle VmmHandle::create(int device, std::size_t bytes, HandleKind kind) {
  const Driver& driver = Driver::get();
  const CUmemAllocationProp properties = allocation_properties(device, kind);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver.cuMemCreate(&handle, bytes, &properties, 0);
  if (result != CUDA_SUCCESS) {
    throw MoEEpError(
        driver.call_text("cuMemCreate of " + std::to_string(bytes) + " bytes", result));
  }
  return VmmHandle(handle);
}

VmmHandle VmmHandle::import_fd(const detail::UniqueFd& fd) {
  const Driver& driver = Driver::get();
  CUmemGenericAllocationHandle handle = 0;
  // The interface takes the descriptor's number as a pointer.
  MOE_EP_DRIVER_CHECK(driver, cuMemImportFromShareableHandle, &handle,
                      reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd.get())),
                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  return VmmHandle(handle);
}

VmmHandle VmmHandle::import_fabric(const std::string& bytes) {
  const Driver& driver = Driver::get();
  CUmemFabricHandle fabric{};
  if (bytes.size() != sizeof fabric.data) {
    throw MoEEpError("a fabric handle must have " + std::to_string(sizeof fabric.data) +
                     " bytes, got " + std::to_string(bytes.size()));
  }
  std::memcpy(fabric.data, bytes.data(), bytes.size());
  CUmemGenericAllocationHandle handle = 0;
  MOE_EP_DRIVER_CHECK(driver, cuMemImportFromShareableHandle, &handle, &fabric,
                      CU_MEM_HANDLE_TYPE_FABRIC);
  return VmmHandle(handle);
}

detail::UniqueFd VmmHandle::export_fd() const {
  int fd = -1;
  MOE_EP_DRIVER_CHECK(Driver::get(), cuMemExportToShareableHandle, &fd, handle_,
                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return detail::UniqueFd(fd);
}

std::string VmmHandle::export_fabric() const {
  CUmemFabricHandle fabric{};
  MOE_EP_DRIVER_CHECK(Driver::get(), cuMemExportToShareableHandle, &fabric, handle_,
                      CU_MEM_HANDLE_TYPE_FABRIC, 0);
  return {reinterpret_cast<const char*>(fabric.data), sizeof fabric.data};
}

std::string why_not(int device, HandleKind kind) {
  const Driver& driver = Driver::get();
  const bool fabric = kind == HandleKind::kFabric;
  int supported = 0;
  const CUresult result = driver.cuDeviceGetAttribute(
      &supported,
      fabric ? CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
             : CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      device);
  if (result != CUDA_SUCCESS) return driver.call_text("cuDeviceGetAttribute", result);
  if (supported == 0) return fabric ? "the GPU has no fabric handles" : "the GPU has no fd handles";
  try {
    const auto probe = VmmHandle::create(device, allocation_granularity(device, kind), kind);
    if (fabric) {
      probe.export_fabric();
    } else {
      probe.export_fd();
    }
  } catch (const MoEEpError& error) {
    return error.what();
  }
  return "";
}

std::size_t allocation_granularity(int device, HandleKind kind) {
  const CUmemAllocationProp properties = allocation_properties(device, kind);
  std::size_t granularity = 0;
  MOE_EP_DRIVER_CHECK(Driver::get(), cuMemGetAllocationGranularity, &granularity, &properties,
                      CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  return granularity;
}

}  // namespace moe_ep::cuda
