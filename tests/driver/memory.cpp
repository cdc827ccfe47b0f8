// Addresses, physical memory and mappings of the double.
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "driver_double.hpp"

namespace {

using namespace moe_ep::testing;

constexpr std::size_t kGranularity = std::size_t{64} << 10;

// Full of rubbish at first. Lives as long as a handle or a mapping refers to it.
struct Slice {
  Slice(std::size_t size, CUmemAllocationHandleType types)
      : bytes(size), named_by(types), fd(::memfd_create("device", MFD_CLOEXEC)) {
    const std::vector<unsigned char> rubbish(size, 0xa7);
    is_there = ::write(fd, rubbish.data(), size) == static_cast<ssize_t>(size);
  }
  ~Slice() { ::close(fd); }
  Slice(const Slice&) = delete;
  Slice& operator=(const Slice&) = delete;

  bool can_be(CUmemAllocationHandleType named) const { return (named_by & named) == named; }

  std::size_t bytes;
  CUmemAllocationHandleType named_by;  // any of these, as bits
  int fd;
  bool is_there = false;
};
using SlicePtr = std::shared_ptr<Slice>;

struct Mapping {
  std::size_t bytes;
  SlicePtr slice;
};

std::mutex mutex;
std::map<CUdeviceptr, std::size_t> all_ranges;
std::map<CUdeviceptr, Mapping> all_mappings;
std::map<CUmemGenericAllocationHandle, SlicePtr> all_handles;
CUmemGenericAllocationHandle last_handle = 0;

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

// Entry of `map` that starts last at or before the address; end() if there is none.
template <class Map>
auto at_or_before(Map& map, CUdeviceptr address) {
  auto next = map.upper_bound(address);
  return next == map.begin() ? map.end() : std::prev(next);
}

bool is_reserved(CUdeviceptr address, std::size_t bytes) {
  const auto range = at_or_before(all_ranges, address);
  return range != all_ranges.end() && address + bytes <= range->first + range->second;
}

bool is_empty(CUdeviceptr address, std::size_t bytes) {
  const auto last = at_or_before(all_mappings, address + bytes - 1);
  return last == all_mappings.end() || last->first + last->second.bytes <= address;
}

void keep_reserved(CUdeviceptr address, std::size_t bytes) {
  ::mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

// Whose memory a file is; the caller holds the lock.
SlicePtr find_slice(dev_t device, ino_t file) {
  const auto is_it = [&](const SlicePtr& slice) {
    struct stat status{};
    return ::fstat(slice->fd, &status) == 0 && status.st_dev == device && status.st_ino == file;
  };
  for (const auto& [handle, slice] : all_handles) {
    if (is_it(slice)) return slice;
  }
  for (const auto& [address, mapping] : all_mappings) {
    if (is_it(mapping.slice)) return mapping.slice;
  }
  return nullptr;
}

struct FabricName {
  std::uint64_t magic = 0x666162726963;
  dev_t device = 0;
  ino_t file = 0;
};

}  // namespace

namespace moe_ep::testing {

Held Held::now() {
  const std::lock_guard lock(mutex);
  Held held{.ranges = static_cast<int>(all_ranges.size()),
            .mappings = static_cast<int>(all_mappings.size()),
            .handles = static_cast<int>(all_handles.size())};
  std::map<const Slice*, bool> slices;
  for (const auto& [handle, slice] : all_handles)
    slices[slice.get()] = slice->can_be(CU_MEM_HANDLE_TYPE_FABRIC);
  for (const auto& [address, mapping] : all_mappings)
    slices[mapping.slice.get()] = mapping.slice->can_be(CU_MEM_HANDLE_TYPE_FABRIC);
  held.slices = static_cast<int>(slices.size());
  held.fabric_slices = static_cast<int>(
      std::count_if(slices.begin(), slices.end(), [](const auto& entry) { return entry.second; }));
  return held;
}

std::ostream& operator<<(std::ostream& out, const Held& held) {
  return out << held.ranges << " ranges, " << held.mappings << " mappings, " << held.handles
             << " handles, " << held.slices << " slices (" << held.fabric_slices << " of fabric)";
}

}  // namespace moe_ep::testing

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                             CUdeviceptr, unsigned long long) {
  if (is_refused("cuMemAddressReserve")) return CUDA_ERROR_OUT_OF_MEMORY;
  if (bytes == 0 || bytes % kGranularity != 0 || alignment % kGranularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void* const raw = ::mmap(nullptr, bytes + alignment, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto first = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(raw));
  *address = (first + alignment - 1) / alignment * alignment;
  if (*address != first) ::munmap(raw, *address - first);
  if (*address != first + alignment) {
    ::munmap(pointer(*address + bytes), first + alignment - *address);
  }
  const std::lock_guard lock(mutex);
  all_ranges[*address] = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto range = all_ranges.find(address);
  if (range == all_ranges.end() || range->second != bytes || !is_empty(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  all_ranges.erase(range);
  ::munmap(pointer(address), bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  if (is_refused("cuMemGetAllocationGranularity")) return CUDA_ERROR_OUT_OF_MEMORY;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long) {
  if (is_refused("cuMemCreate")) return CUDA_ERROR_OUT_OF_MEMORY;
  if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto types = properties->requestedHandleTypes;
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0 && fabric_here() == Fabric::kNotPermitted) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  auto slice = std::make_shared<Slice>(bytes, types);
  if (!slice->is_there) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(mutex);
  all_handles[*handle = ++last_handle] = std::move(slice);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(mutex);
  return all_handles.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long) {
  if (is_refused("cuMemExportToShareableHandle")) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(mutex);
  const auto found = all_handles.find(handle);
  if (found == all_handles.end() || !found->second->can_be(type)) return CUDA_ERROR_INVALID_VALUE;
  const int fd = found->second->fd;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    std::memcpy(shareable, &copy, sizeof copy);
    return copy < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  }
  if (fabric_here() == Fabric::kNoExport) return CUDA_ERROR_NOT_PERMITTED;
  struct stat status{};
  ::fstat(fd, &status);
  const FabricName name{.device = status.st_dev, .file = status.st_ino};
  static_assert(sizeof name <= sizeof(CUmemFabricHandle));
  std::memset(shareable, 0, sizeof(CUmemFabricHandle));
  std::memcpy(shareable, &name, sizeof name);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  if (is_refused("cuMemImportFromShareableHandle")) return CUDA_ERROR_OUT_OF_MEMORY;
  FabricName name;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    std::memcpy(&name, shareable, sizeof name);
    if (name.magic != FabricName{}.magic) return CUDA_ERROR_INVALID_VALUE;
  } else {
    struct stat status{};
    const auto fd = static_cast<int>(reinterpret_cast<std::uintptr_t>(shareable));
    if (::fstat(fd, &status) != 0) return CUDA_ERROR_INVALID_VALUE;
    name.device = status.st_dev;
    name.file = status.st_ino;
  }
  const std::lock_guard lock(mutex);
  SlicePtr slice = find_slice(name.device, name.file);
  if (slice == nullptr || !slice->can_be(type)) return CUDA_ERROR_INVALID_VALUE;
  all_handles[*handle = ++last_handle] = std::move(slice);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long) {
  if (is_refused("cuMemMap")) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(mutex);
  const auto found = all_handles.find(handle);
  if (found == all_handles.end() || offset + bytes > found->second->bytes ||
      !is_reserved(address, bytes) || !is_empty(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void* const mapped = ::mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                              found->second->fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  all_mappings[address] = {bytes, found->second};
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto mapping = all_mappings.find(address);
  if (mapping == all_mappings.end() || mapping->second.bytes != bytes)
    return CUDA_ERROR_INVALID_VALUE;
  keep_reserved(address, bytes);
  all_mappings.erase(mapping);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc*,
                        std::size_t) {
  if (is_refused("cuMemSetAccess")) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(mutex);
  const auto mapping = all_mappings.find(address);
  if (mapping == all_mappings.end() || mapping->second.bytes != bytes)
    return CUDA_ERROR_INVALID_VALUE;
  return ::mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE) == 0
             ? CUDA_SUCCESS
             : CUDA_ERROR_OUT_OF_MEMORY;
}
