// Quantised combine outputs: MXFP8, MXFP4 and NVFP4 from the float32 sum.
//
// A block of consecutive elements shares a scale; amax is its largest finite magnitude.
//
// | format | block | value | scale code | value code |
// |---|---|---|---|---|
// | Mxfp8 | 32 | e4m3 | e8m0, smallest e >= -127 with amax <= 448 * 2^e | e4m3(x * 2^-e) |
// | Mxfp4 | 32 | e2m1 | e8m0, smallest e >= -127 with amax <= 6 * 2^e | e2m1(x * 2^-e) |
// | Nvfp4 | 16 | e2m1 | e4m3((amax * g) / 6) | e2m1((x * g) / scale) |
//
// g is the caller's output_scalar_scale (> 0); MX formats ignore it. Each operation in parentheses
// is one float32 operation, rounded to nearest even, from the inside out. e never reaches its upper
// end: 126 is enough for the largest float32. Below 2^-127 the MX exponent stays there and values
// fade to zero. An all-zero block has scale code 0 in every format, and so has an Nvfp4 block whose
// scale rounds to zero; its value codes are then zeros of the elements' signs. An Nvfp4 scale
// saturates at 448, its values at 6.
//
// Not finite: in Mxfp8 the element becomes the NaN code, in its own place only. e2m1 has no NaN, so
// one NaN or infinity makes the scale of its FP4 block NaN (0xff or 0x7f) and all its values 0:
// a poisoned block is better than a plausible number.
//
// Source: OCP Microscaling Formats (MX) v1.0. Its conversion rounds the exponent down and lets
// values saturate; here it is rounded up and none does. Any exponent makes a valid MX block.
#pragma once

#include "protocol/small_float.hpp"

namespace moe_ep::protocol {

// What a block's scale depends on.
struct BlockAmax {
  std::uint32_t bits = 0;  // largest finite magnitude, as float32 bits
  bool all_finite = true;

  MOE_EP_HD constexpr void add(float value) {
    if (!is_finite(value)) {
      all_finite = false;
    } else if (magnitude(value) > bits) {
      bits = magnitude(value);
    }
  }
};

// The e8m0 code of the smallest 2^e with amax <= max_value * 2^e, e >= -127, where max_value is the
// float32 with exponent `MaxExponent` and mantissa bits `MaxMantissa`.
template <int MaxExponent, std::uint32_t MaxMantissa>
MOE_EP_HD constexpr E8M0::Bits mx_scale(std::uint32_t amax_bits) {
  const int field = static_cast<int>(amax_bits >> 23);
  const int above = (amax_bits & 0x7fffffu) > MaxMantissa ? 1 : 0;
  const int code = field - MaxExponent + above;
  return static_cast<E8M0::Bits>(code > 0 ? code : 0);
}

// value * 2^-e for the scale 2^e. Exact, except far below the smallest code.
MOE_EP_HD inline float mx_scaled(float value, E8M0::Bits scale) {
  return mul_rn(value, E8M0::to_float(static_cast<E8M0::Bits>(254 - scale)));
}

struct Mxfp8 {
  static constexpr int kBlockElements = 32;
  static constexpr int kElementsPerByte = 1;

  static MOE_EP_HD constexpr std::uint8_t scale(BlockAmax amax, float /*scalar_scale*/) {
    return mx_scale<8, 0x600000u>(amax.bits);  // 448 = 1.75 * 2^8
  }
  static MOE_EP_HD inline std::uint8_t value(float x, std::uint8_t scale, float /*scalar_scale*/) {
    return is_finite(x) ? E4M3::from_float(mx_scaled(x, scale)) : E4M3::kNan;
  }
};

struct Mxfp4 {
  static constexpr int kBlockElements = 32;
  static constexpr int kElementsPerByte = 2;

  static MOE_EP_HD constexpr std::uint8_t scale(BlockAmax amax, float /*scalar_scale*/) {
    return amax.all_finite ? mx_scale<2, 0x400000u>(amax.bits) : E8M0::kNan;  // 6 = 1.5 * 2^2
  }
  static MOE_EP_HD inline std::uint8_t value(float x, std::uint8_t scale, float /*scalar_scale*/) {
    return scale == E8M0::kNan ? std::uint8_t{0} : E2M1::from_float(mx_scaled(x, scale));
  }
};

struct Nvfp4 {
  static constexpr int kBlockElements = 16;
  static constexpr int kElementsPerByte = 2;

  static MOE_EP_HD inline std::uint8_t scale(BlockAmax amax, float scalar_scale) {
    if (!amax.all_finite) return E4M3::kNan;
    return E4M3::from_float(div_rn(mul_rn(bits_float(amax.bits), scalar_scale), 6.0f));
  }
  static MOE_EP_HD inline std::uint8_t value(float x, std::uint8_t scale, float scalar_scale) {
    if (scale == E4M3::kNan) return 0;
    const float scaled = mul_rn(x, scalar_scale);
    if (scale == 0) return static_cast<std::uint8_t>((float_bits(scaled) & kSignBit) >> 28);
    return E2M1::from_float(div_rn(scaled, E4M3::to_float(scale)));
  }
};

// Quantises one block: writes its value codes, returns its scale code. `count` is the number of
// elements, kBlockElements except at a row's ragged end; an odd last nibble is 0.
template <class Format>
MOE_EP_HD inline std::uint8_t quantize_block(const float* x, int count, float scalar_scale,
                                             std::uint8_t* values) {
  BlockAmax amax;
  for (int i = 0; i < count; ++i)
    amax.add(x[i]);
  const std::uint8_t scale = Format::scale(amax, scalar_scale);
  if constexpr (Format::kElementsPerByte == 1) {
    for (int i = 0; i < count; ++i)
      values[i] = Format::value(x[i], scale, scalar_scale);
  } else {
    for (int i = 0; i < count; i += 2) {
      const std::uint8_t even = Format::value(x[i], scale, scalar_scale);
      const std::uint8_t odd =
          i + 1 < count ? Format::value(x[i + 1], scale, scalar_scale) : std::uint8_t{0};
      values[i / 2] = E2M1::pack(even, odd);
    }
  }
  return scale;
}

}  // namespace moe_ep::protocol
