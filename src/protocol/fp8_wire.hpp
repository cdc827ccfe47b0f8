// The wire format of the low-precision combine: e4m3 codes with a float32 scale per 128 elements.
//
// A row of H elements travels as
//
// | bytes | what |
// |---|---|
// | [0, H) | e4m3 code of each element |
// | up to a multiple of 4 | padding, not read |
// | 4 * ceil(H / 128) | float32 scale of each block of 128 elements (the last may be shorter) |
//
// Encoding: with amax the largest finite magnitude of the block, scale s = amax / 448, but at least
// 2^-140 if amax > 0; s = 0 in a block without a finite non-zero element. The code is
// e4m3(x * (1 / s)), saturating; a zero keeps its sign, NaN and infinity become the NaN code.
// Decoding: code * s. The sum over ranks is that of reduce.hpp over decoded elements.
//
// The error of a combined element is at most sum over ranks (2^-4 |x_r| + 2^-10 s_r) plus half an
// ulp of the output (as long as nothing overflows): e4m3 keeps 4 significant bits, so a normal code
// is off by |x| / 17 at most and a subnormal one by 2^-10 s; the difference between 1/17 and 1/16
// pays for all float32 roundings. Two measures keep that true where float32 itself becomes coarse:
//
// - s >= 2^-140: below, s would be a few units of 2^-149 and off by up to a half. With s = 2^-140
//   the subnormal codes are the multiples of 2^-149, i.e. every float32 that small is exact.
// - Lift: if all scales of a sum are below 2^-60, products are formed 2^64 times too large and the
//   sum is scaled back once. Otherwise each product below 2^-126 would be rounded to 2^-149 on its
//   own. Scaling by a power of two changes nothing else.
#pragma once

#include "protocol/reduce.hpp"
#include "protocol/small_float.hpp"

namespace moe_ep::protocol {

// Elements that share a scale.
inline constexpr int kFp8BlockElements = 128;

MOE_EP_HD constexpr std::int64_t fp8_num_blocks(std::int64_t hidden) {
  return (hidden + kFp8BlockElements - 1) / kFp8BlockElements;
}
// Offset of the scales in a wire row, in bytes.
MOE_EP_HD constexpr std::int64_t fp8_scales_offset(std::int64_t hidden) {
  return (hidden + 3) / 4 * 4;
}
// Bytes of a wire row.
MOE_EP_HD constexpr std::int64_t fp8_wire_row_bytes(std::int64_t hidden) {
  return fp8_scales_offset(hidden) + 4 * fp8_num_blocks(hidden);
}
// Whether the wire row is smaller than the row it stands for. Where it is not (a few elements), the
// row travels in its own type, each element passed through finite_or_nan().
MOE_EP_HD constexpr bool fp8_wire_pays(std::int64_t hidden, std::int64_t itemsize) {
  return fp8_wire_row_bytes(hidden) < hidden * itemsize;
}

inline constexpr float kFp8MinScale = 0x1p-140f;
inline constexpr float kFp8LiftBelow = 0x1p-60f;
inline constexpr float kFp8Lift = 0x1p64f;
inline constexpr float kFp8Unlift = 0x1p-64f;

// What an element adds to its block's amax: its magnitude as bits, 0 if it is not finite. The
// largest of these integers is amax.
MOE_EP_HD constexpr std::uint32_t fp8_amax_bits(float value) {
  return is_finite(value) ? magnitude(value) : 0;
}

// The scale of a block.
MOE_EP_HD inline float fp8_scale(std::uint32_t amax_bits) {
  if (amax_bits == 0) return 0.0f;
  const float scale = div_rn(bits_float(amax_bits), 448.0f);
  return scale > kFp8MinScale ? scale : kFp8MinScale;
}

// What one block's elements are multiplied by: first `lift` (exact), then `inverse`.
struct Fp8Encoder {
  float lift;
  float inverse;
};

MOE_EP_HD inline Fp8Encoder fp8_encoder(float scale) {
  if (scale == 0.0f) return {1.0f, 1.0f};
  const float lift = scale < kFp8LiftBelow ? kFp8Lift : 1.0f;
  return {lift, div_rn(1.0f, mul_rn(scale, lift))};
}

MOE_EP_HD inline E4M3::Bits fp8_encode(float value, Fp8Encoder encoder) {
  if (!is_finite(value)) return E4M3::kNan;
  return E4M3::from_float(mul_rn(mul_rn(value, encoder.lift), encoder.inverse));
}

// Factor on the scales of one block's sum, from the largest scale among its contributions.
MOE_EP_HD constexpr float fp8_lift(float max_scale) {
  return max_scale < kFp8LiftBelow ? kFp8Lift : 1.0f;
}
// The sum of lifted contributions at its true size.
MOE_EP_HD inline float fp8_unlift(float sum, float lift) {
  return lift == 1.0f ? sum : mul_rn(sum, kFp8Unlift);
}
// A contribution; `lifted_scale` is its scale times the block's lift.
MOE_EP_HD inline float fp8_decode(E4M3::Bits code, float lifted_scale) {
  return mul_rn(E4M3::to_float(code), lifted_scale);
}

// An element of a row too short to be worth encoding: infinities become NaN as they would on the
// wire, everything else stays.
template <class Type>
MOE_EP_HD inline typename Type::Bits finite_or_nan(typename Type::Bits bits) {
  const float value = Type::to_float(bits);
  return is_finite(value) ? bits : Type::from_float(bits_float(kQuietNanBits));
}

}  // namespace moe_ep::protocol
