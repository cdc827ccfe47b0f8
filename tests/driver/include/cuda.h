// The part of CUDA's driver interface that src/cuda asks for, as the double (driver_double.hpp) has
// it. Names, types and numbers are the driver's.
#pragma once

#include <cstddef>

enum CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_NOT_PERMITTED = 800,
};
CUresult cuGetErrorName(CUresult result, const char** name);
CUresult cuGetErrorString(CUresult result, const char** text);

using CUcontext = struct CUctx_st*;
CUresult cuCtxGetCurrent(CUcontext* context);

using CUdevice = int;
enum CUdevice_attribute {
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
};
CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device);

// Addresses.
using CUdeviceptr = unsigned long long;
CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes);

// Physical memory.
using CUmemGenericAllocationHandle = unsigned long long;
enum CUmemAllocationType { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum CUmemAllocationHandleType {
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_HANDLE_TYPE_FABRIC = 8,
};
enum CUmemLocationType { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
struct CUmemLocation {
  CUmemLocationType type;
  int id;
};
struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
};
struct CUmemFabricHandle {
  unsigned char data[64];
};
enum CUmemAllocationGranularity_flags { CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1 };
CUresult cuMemGetAllocationGranularity(std::size_t* granularity,
                                       const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option);
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type);

// Mappings.
enum CUmemAccess_flags { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};
CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes);
CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access,
                        std::size_t count);
