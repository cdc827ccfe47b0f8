// Float32 arithmetic that means the same on every processor.
//
// The library promises identical bits on CPU and GPU, so a product that feeds a sum must not be
// fused by one compiler and left alone by the other. On the device each operation is an intrinsic
// that the compiler never contracts; on the host the library is compiled with -ffp-contract=off.
// All of it assumes the default environment: round to nearest even, denormals kept (no -ftz=true,
// no FTZ/DAZ in MXCSR).
#pragma once

#include <moe_ep/types.hpp>

namespace moe_ep::protocol {

inline constexpr std::uint32_t kSignBit = 0x80000000u;
inline constexpr std::uint32_t kMagnitudeMask = 0x7fffffffu;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;
inline constexpr std::uint32_t kQuietNanBits = 0x7fc00000u;

MOE_EP_HD constexpr std::uint32_t float_bits(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}
MOE_EP_HD constexpr float bits_float(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// |value| as bits. Magnitudes order like unsigned integers: zero, denormals, ..., infinity, NaN.
MOE_EP_HD constexpr std::uint32_t magnitude(float value) {
  return float_bits(value) & kMagnitudeMask;
}

MOE_EP_HD constexpr bool is_finite(float value) {
  return magnitude(value) < kInfinityBits;
}
MOE_EP_HD constexpr bool is_nan(float value) {
  return magnitude(value) > kInfinityBits;
}

// a + b, rounded to nearest even, never fused.
MOE_EP_HD inline float add_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// a * b, rounded to nearest even, never fused.
MOE_EP_HD inline float mul_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// a / b, correctly rounded.
MOE_EP_HD inline float div_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

}  // namespace moe_ep::protocol
