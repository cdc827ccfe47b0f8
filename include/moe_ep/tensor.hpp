/// @file
/// TensorView: a tensor somebody else owns, described with DLPack's vocabulary.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include <moe_ep/export.hpp>
#include <moe_ep/types.hpp>

namespace moe_ep {

/// Where a tensor's memory lies. `type` is DLPack's DLDeviceType.
struct Device {
  static constexpr std::int32_t kCpu = 1;
  static constexpr std::int32_t kCuda = 2;

  std::int32_t type = kCpu;
  std::int32_t index = 0;

  friend constexpr bool operator==(Device a, Device b) {
    return a.type == b.type && a.index == b.index;
  }
};

/// Non-owning view: pointer, dtype, shape, strides (in elements), device. Copying it copies no
/// data; the memory must outlive every call the view is passed to.
struct TensorView {
  static constexpr int kMaxDims = 4;

  void* data = nullptr;
  DType dtype{};
  Device device{};
  int ndim = 0;
  std::array<std::int64_t, kMaxDims> shape{};
  std::array<std::int64_t, kMaxDims> strides{};

  TensorView() = default;
  /// A contiguous (row-major) tensor of `shape` at `data`.
  TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
             Device device = {});

  std::int64_t size(int dim) const { return shape[static_cast<std::size_t>(dim)]; }
  std::int64_t stride(int dim) const { return strides[static_cast<std::size_t>(dim)]; }
  std::int64_t numel() const {
    std::int64_t total = 1;
    for (int dim = 0; dim < ndim; ++dim)
      total *= size(dim);
    return total;
  }
  bool is_contiguous() const {
    std::int64_t expected = 1;
    for (int dim = ndim - 1; dim >= 0; --dim) {
      if (size(dim) != 1 && stride(dim) != expected) return false;
      expected *= size(dim);
    }
    return true;
  }
};

inline TensorView::TensorView(void* data_, DType dtype_, std::initializer_list<std::int64_t> shape_,
                              Device device_)
    : data(data_), dtype(dtype_), device(device_), ndim(static_cast<int>(shape_.size())) {
  int dim = 0;
  for (const std::int64_t extent : shape_)
    shape[static_cast<std::size_t>(dim++)] = extent;
  std::int64_t step = 1;
  for (dim = ndim - 1; dim >= 0; --dim) {
    strides[static_cast<std::size_t>(dim)] = step;
    step *= size(dim);
  }
}

/// "BFloat16 [4, 7168]", for messages.
MOE_EP_API std::string describe(const TensorView& tensor);

}  // namespace moe_ep
