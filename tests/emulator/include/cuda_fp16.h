// binary16 conversions, by the protocol's integer definitions.
#pragma once

#include <cuda_runtime.h>

#include "protocol/payload.hpp"

struct __half {
  unsigned short bits;
};
struct __half2_raw {
  unsigned short x, y;
};
struct __half2 {
  __half x, y;
  __half2(__half x_, __half y_) : x(x_), y(y_) {}
  explicit __half2(__half2_raw raw) : x{raw.x}, y{raw.y} {}
};
inline float __half2float(__half value) {
  return moe_ep::protocol::Fp16::to_float(value.bits);
}
inline __half __float2half_rn(float value) {
  return {moe_ep::protocol::Fp16::from_float(value)};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline float2 __half22float2(__half2 pair) {
  return {__half2float(pair.x), __half2float(pair.y)};
}
inline unsigned short __half_as_ushort(__half value) {
  return value.bits;
}
inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
