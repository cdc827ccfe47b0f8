// Element codecs: how the element types that combine adds up are stored.
//
// A codec names its stored form `Bits` and converts it to and from float32. `to_float` is exact.
// `from_float` rounds to nearest even, overflows to infinity, keeps subnormals and the sign of
// zero; a NaN stays a NaN and becomes quiet. Both are integer arithmetic, so that host and device
// agree bit for bit whatever their compilers do with floats.
//
// | codec | sign, exponent, mantissa bits | bias | source |
// |---|---|---|---|
// | Bf16 | 1, 8, 7 | 127 | upper half of IEEE 754 binary32 |
// | Fp16 | 1, 5, 10 | 15 | IEEE 754 binary16 |
// | Fp32 | 1, 8, 23 | 127 | IEEE 754 binary32 |
//
// The formats without infinities (e4m3, e2m1, e8m0) are in small_float.hpp.
#pragma once

#include "protocol/narrow_float.hpp"

namespace moe_ep::protocol {

struct Bf16 {
  using Bits = std::uint16_t;

  static MOE_EP_HD constexpr float to_float(Bits bits) {
    return bits_float(static_cast<std::uint32_t>(bits) << 16);
  }
  static MOE_EP_HD constexpr Bits from_float(float value) {
    const std::uint32_t bits = float_bits(value);
    // A NaN whose payload sits in the lower half would round to infinity.
    if (is_nan(value)) return static_cast<Bits>(bits >> 16 | 0x40u);
    const std::uint32_t odd = bits >> 16 & 1;
    return static_cast<Bits>((bits + 0x7fffu + odd) >> 16);
  }
};

struct Fp16 {
  using Bits = std::uint16_t;

  static MOE_EP_HD inline float to_float(Bits bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t code = bits & 0x7fffu;
    const std::uint32_t payload = (code & 0x3ffu) << 13;
    if (code > 0x7c00u) return bits_float(sign | kQuietNanBits | payload);
    if (code == 0x7c00u) return bits_float(sign | kInfinityBits);
    return bits_float(sign | float_bits(widen_magnitude<10, 15>(code)));
  }
  static MOE_EP_HD constexpr Bits from_float(float value) {
    const std::uint32_t sign = (float_bits(value) & kSignBit) >> 16;
    const std::uint32_t bits = magnitude(value);
    if (is_nan(value)) return static_cast<Bits>(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
    const std::uint32_t code = narrow_magnitude<10, 15>(bits);
    return static_cast<Bits>(sign | (code < 0x7c00u ? code : 0x7c00u));
  }
};

struct Fp32 {
  using Bits = std::uint32_t;

  static MOE_EP_HD constexpr float to_float(Bits bits) { return bits_float(bits); }
  static MOE_EP_HD constexpr Bits from_float(float value) {
    return is_nan(value) ? float_bits(value) | 0x400000u : float_bits(value);
  }
};

// A codec as a run-time value.
enum class Codec : std::uint8_t { kBf16, kFp16, kFp32 };

// Whether combine can add elements of `dtype`.
MOE_EP_HD constexpr bool has_codec(DType dtype) {
  return dtype == kBFloat16 || dtype == kFloat16 || dtype == kFloat32;
}
// The codec of `dtype`, for which has_codec() holds.
MOE_EP_HD constexpr Codec codec_of(DType dtype) {
  return dtype == kBFloat16 ? Codec::kBf16 : dtype == kFloat16 ? Codec::kFp16 : Codec::kFp32;
}
// Bytes of one element.
MOE_EP_HD constexpr std::int64_t codec_bytes(Codec codec) {
  return codec == Codec::kFp32 ? 4 : 2;
}

}  // namespace moe_ep::protocol
