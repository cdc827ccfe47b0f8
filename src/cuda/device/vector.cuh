// Rows as vectors of up to 16 bytes a lane.
//
// A Piece is what one lane holds of a row: kVectors vectors of `width` bytes, each in a 16-byte
// register group. The width is the same for a whole warp and chosen by the host: the largest power
// of two up to 16 that divides every address, stride and row size involved (row_width).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <moe_ep/types.hpp>

#include "cuda/device/ptx.cuh"

namespace moe_ep::cuda {

inline constexpr int kWarp = 32;

// What an address or a size is a multiple of, for row_width.
inline std::uint64_t bits_of(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}
inline std::uint64_t bits_of(std::int64_t value) {
  return static_cast<std::uint64_t>(value);
}

// The widest vector for rows that start at multiples of these and end so, too.
MOE_EP_HD constexpr std::int32_t row_width(std::uint64_t all_or_ed) {
  const std::uint64_t lowest = all_or_ed & (~all_or_ed + 1);
  return lowest == 0 || lowest > 16 ? 16 : static_cast<std::int32_t>(lowest);
}

__device__ __forceinline__ int lane_id() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ __forceinline__ int warp_id() {
  return static_cast<int>(threadIdx.x) / kWarp;
}
__device__ __forceinline__ int num_warps() {
  return static_cast<int>(blockDim.x) / kWarp;
}

// Bytes of a row that a warp holds in one piece.
template <int Vectors>
MOE_EP_HD constexpr std::int32_t piece_bytes(std::int32_t width) {
  return kWarp * Vectors * width;
}

template <int Vectors>
struct Piece {
  uint4 vectors[Vectors];
};

// Runs `body` with the width as a constant.
template <class Body>
__device__ __forceinline__ void with_width(std::int32_t width, Body&& body) {
  switch (width) {
    case 16:
      body(std::integral_constant<int, 16>{});
      break;
    case 8:
      body(std::integral_constant<int, 8>{});
      break;
    case 4:
      body(std::integral_constant<int, 4>{});
      break;
    case 2:
      body(std::integral_constant<int, 2>{});
      break;
    default:
      body(std::integral_constant<int, 1>{});
      break;
  }
}

// The warp's piece at `offset` of a row of `row_bytes`. Lanes beyond the row's end do nothing.
template <int Vectors>
__device__ __forceinline__ void load_piece(Piece<Vectors>& piece, const std::byte* row,
                                           std::uint32_t offset, std::uint32_t row_bytes,
                                           std::int32_t width) {
  with_width(width, [&](auto constant) {
    constexpr int kWidth = decltype(constant)::value;
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const std::uint32_t at =
          offset + static_cast<std::uint32_t>((i * kWarp + lane_id()) * kWidth);
      if (at < row_bytes) piece.vectors[i] = load_vector<kWidth>(row + at);
    }
  });
}

template <int Vectors>
__device__ __forceinline__ void store_piece(const Piece<Vectors>& piece, std::byte* row,
                                            std::uint32_t offset, std::uint32_t row_bytes,
                                            std::int32_t width) {
  with_width(width, [&](auto constant) {
    constexpr int kWidth = decltype(constant)::value;
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const std::uint32_t at =
          offset + static_cast<std::uint32_t>((i * kWarp + lane_id()) * kWidth);
      if (at < row_bytes) store_vector<kWidth>(row + at, piece.vectors[i]);
    }
  });
}

}  // namespace moe_ep::cuda
