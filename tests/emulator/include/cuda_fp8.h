// e4m3 conversions, by the protocol's integer definitions.
#pragma once

#include <cuda_fp16.h>

#include "protocol/small_float.hpp"

using __nv_fp8x2_storage_t = unsigned short;
enum __nv_saturation_t { __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3 };

inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 pair, __nv_saturation_t,
                                                     __nv_fp8_interpretation_t) {
  using moe_ep::protocol::E4M3;
  return static_cast<__nv_fp8x2_storage_t>(E4M3::from_float(pair.y) << 8 |
                                           E4M3::from_float(pair.x));
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t codes,
                                              __nv_fp8_interpretation_t) {
  using moe_ep::protocol::E4M3;
  using moe_ep::protocol::Fp16;
  return {Fp16::from_float(E4M3::to_float(static_cast<E4M3::Bits>(codes))),
          Fp16::from_float(E4M3::to_float(static_cast<E4M3::Bits>(codes >> 8)))};
}
