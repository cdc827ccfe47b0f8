// The formats of quantised rows: e4m3 values and scales, e2m1 values, e8m0 scales.
//
// | codec | bits | largest | smallest | NaN | source |
// |---|---|---|---|---|---|
// | E4M3 | 1, 4, 3, bias 7 | 448 | 2^-9 | 0x7f, 0xff | OCP 8-bit Floating Point (OFP8) v1.0 |
// | E2M1 | 1, 2, 1, bias 1 | 6 | 0.5 | none | OCP Microscaling Formats (MX) v1.0 |
// | E8M0 | exponent only, bias 127 | 2^127 | 2^-127 | 0xff | OCP MX v1.0 |
//
// None has an infinity. E4M3 and E2M1 round to nearest, ties to even, and saturate: whatever lies
// beyond the largest value, infinity too, becomes the largest value of the same sign.
#pragma once

#include "protocol/narrow_float.hpp"

namespace moe_ep::protocol {

struct E4M3 {
  using Bits = std::uint8_t;
  static constexpr Bits kNan = 0x7f;
  static constexpr Bits kMaxCode = 0x7e;

  static MOE_EP_HD inline float to_float(Bits bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
    const std::uint32_t code = bits & 0x7fu;
    if (code == kNan) return bits_float(sign | kQuietNanBits);
    return bits_float(sign | float_bits(widen_magnitude<3, 7>(code)));
  }
  // A NaN loses its sign and becomes kNan, as in the conversion instruction of CUDA devices.
  static MOE_EP_HD constexpr Bits from_float(float value) {
    if (is_nan(value)) return kNan;
    const std::uint32_t sign = (float_bits(value) & kSignBit) >> 24;
    const std::uint32_t code = narrow_magnitude<3, 7>(magnitude(value));
    return static_cast<Bits>(sign | (code < kMaxCode ? code : kMaxCode));
  }
};

// Four bits; two share a byte, the element of even index in the low nibble.
struct E2M1 {
  using Bits = std::uint8_t;
  static constexpr Bits kMaxCode = 0x7;

  static MOE_EP_HD inline float to_float(Bits bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8u) << 28;
    return bits_float(sign | float_bits(widen_magnitude<1, 1>(bits & 0x7u)));
  }
  // There is no NaN to give: a NaN becomes +6, as in the conversion instruction of CUDA devices.
  static MOE_EP_HD constexpr Bits from_float(float value) {
    if (is_nan(value)) return kMaxCode;
    const std::uint32_t sign = (float_bits(value) & kSignBit) >> 28;
    const std::uint32_t code = narrow_magnitude<1, 1>(magnitude(value));
    return static_cast<Bits>(sign | (code < kMaxCode ? code : kMaxCode));
  }

  static MOE_EP_HD constexpr std::uint8_t pack(Bits even, Bits odd) {
    return static_cast<std::uint8_t>((even & 0xfu) | static_cast<std::uint32_t>(odd) << 4);
  }
  static MOE_EP_HD constexpr Bits unpack(std::uint8_t byte, int idx) {
    return static_cast<Bits>(byte >> 4 * (idx & 1) & 0xf);
  }
};

// A power of two, 2^(bits - 127).
struct E8M0 {
  using Bits = std::uint8_t;
  static constexpr Bits kNan = 0xff;

  static MOE_EP_HD constexpr float to_float(Bits bits) {
    if (bits == kNan) return bits_float(kQuietNanBits);
    // 2^-127 is a float32 denormal.
    return bits_float(bits == 0 ? 0x00400000u : static_cast<std::uint32_t>(bits) << 23);
  }
  // The smallest power of two that is no less than |value|, at least 2^-127. Infinity, NaN and
  // what exceeds 2^127 become NaN.
  static MOE_EP_HD constexpr Bits from_float_up(float value) {
    const std::uint32_t bits = magnitude(value);
    if (bits <= 0x00400000u) return 0;
    const std::uint32_t up = (bits + 0x7fffffu) >> 23;
    return static_cast<Bits>(up < kNan ? up : kNan);
  }
};

}  // namespace moe_ep::protocol
