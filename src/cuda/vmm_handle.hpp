// One rank's slice as physical device memory, and how other ranks get hold of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/unique_fd.hpp"
#include "cuda/driver.hpp"

namespace moe_ep::cuda {

// How a slice's memory is named to other ranks: the same way for all slices of a workspace. Memory
// made for fabric handles can also be named by descriptors, as ranks that come later may need it.
enum class HandleKind : std::int32_t {
  kFd = 0,      // a descriptor: ranks of one host
  kFabric = 1,  // 64 bytes: ranks of one NVLink domain, hosts that the fabric's manager knows
};

CUmemAllocationProp allocation_properties(int device, HandleKind kind);

// Owns a reference to physical memory. A mapping holds its own: memory lives until the last handle
// is released and the last mapping is gone.
class VmmHandle {
 public:
  VmmHandle() = default;
  ~VmmHandle() { reset(); }
  VmmHandle(VmmHandle&& other) noexcept;
  VmmHandle& operator=(VmmHandle&& other) noexcept;

  // @throws MoEEpError
  static VmmHandle create(int device, std::size_t bytes, HandleKind kind);
  static VmmHandle import_fd(const detail::UniqueFd& fd);
  static VmmHandle import_fabric(const std::string& bytes);

  detail::UniqueFd export_fd() const;
  std::string export_fabric() const;

  CUmemGenericAllocationHandle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != 0; }
  void reset() noexcept;

 private:
  explicit VmmHandle(CUmemGenericAllocationHandle handle) : handle_(handle) {}
  CUmemGenericAllocationHandle handle_ = 0;
};

// Whether this process can make memory of `kind` on `device` and name it. The device attribute
// alone does not tell: without an IMEX channel the attribute says yes and cuMemCreate
// NOT_PERMITTED, so one granule is made and named. Empty if it can, else the reason.
std::string why_not(int device, HandleKind kind);

// In bytes; slices are multiples of it.
std::size_t allocation_granularity(int device, HandleKind kind);

}  // namespace moe_ep::cuda
