// Conversion between float32 and binary formats with fewer bits, in integers.
//
// A format with M mantissa bits and bias B stores a magnitude as exponent field times 2^M plus
// mantissa, subnormals at field 0. Float32 does the same with 23 and 127, so for normal results
// dropping 23 - M bits and rebasing the exponent is a conversion; only subnormals need a shift of
// their own. Signs, NaNs and the upper end differ between formats and are left to the caller.
#pragma once

#include "protocol/float_ops.hpp"

namespace moe_ep::protocol {

// value / 2^shift, rounded to nearest, ties to even. `shift` in 1..31, value < 2^31.
MOE_EP_HD constexpr std::uint32_t shift_right_rne(std::uint32_t value, std::uint32_t shift) {
  const std::uint32_t below_half = (1u << (shift - 1)) - 1;
  const std::uint32_t odd = value >> shift & 1;
  return (value + below_half + odd) >> shift;
}

// The code of the float32 magnitude `bits` (sign clear), round to nearest even, as if the format
// had no upper end: the caller clamps. NaN gives a code above every finite one.
template <int MantissaBits, int Bias>
MOE_EP_HD constexpr std::uint32_t narrow_magnitude(std::uint32_t bits) {
  constexpr std::uint32_t kDrop = 23 - MantissaBits;
  constexpr std::uint32_t kMinNormalField = 128 - Bias;
  const std::uint32_t field = bits >> 23;
  if (field >= kMinNormalField) {
    constexpr std::uint32_t kRebase = static_cast<std::uint32_t>(127 - Bias) << MantissaBits;
    return shift_right_rne(bits, kDrop) - kRebase;
  }
  const std::uint32_t shift = kDrop + kMinNormalField - field;
  if (shift > 24) return 0;  // below half the smallest subnormal
  return shift_right_rne((bits & 0x7fffffu) | 0x800000u, shift);
}

// The float32 value of the magnitude code `code`, which must be finite. Exact.
template <int MantissaBits, int Bias>
MOE_EP_HD inline float widen_magnitude(std::uint32_t code) {
  constexpr std::uint32_t kDrop = 23 - MantissaBits;
  if (code >> MantissaBits != 0) {
    constexpr std::uint32_t kRebase = static_cast<std::uint32_t>(127 - Bias) << 23;
    return bits_float((code << kDrop) + kRebase);
  }
  constexpr std::uint32_t kStepField =
      127 + 1 - Bias - MantissaBits;  // 2^(1 - Bias - MantissaBits)
  return mul_rn(static_cast<float>(code), bits_float(kStepField << 23));
}

}  // namespace moe_ep::protocol
