// The reserved device addresses of a workspace, and which slices are mapped there.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/vmm_handle.hpp"

namespace moe_ep::cuda {

// Slice r at base() + r * stride. The whole range stays reserved, so that slices keep their
// addresses whatever is mapped into them. Everything mapped is accessible to one device.
class VmmRange {
 public:
  // @param stride a multiple of the granularity
  VmmRange(int num_slices, std::size_t stride, std::size_t granularity, int device);
  ~VmmRange();
  VmmRange(const VmmRange&) = delete;
  VmmRange& operator=(const VmmRange&) = delete;

  std::byte* base() const { return base_; }
  std::byte* slice(int index) const { return base_ + static_cast<std::size_t>(index) * stride_; }
  std::size_t stride() const { return stride_; }

  // Puts memory of `stride` bytes into an empty slice. @throws MoEEpError
  void map(int index, const VmmHandle& handle);
  // No-op where nothing is mapped. No kernel may be using the slice.
  void unmap(int index) noexcept;

 private:
  const std::size_t stride_;
  const int device_;
  std::vector<bool> mapped_;
  std::byte* base_ = nullptr;
};

}  // namespace moe_ep::cuda
