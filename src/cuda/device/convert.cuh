// The protocol's element codecs with the conversion instructions of the device.
//
// Same values as protocol/payload.hpp and small_float.hpp, bit for bit, except that a NaN result
// may have another sign and payload where the protocol leaves that open (plain codecs; e4m3 has one
// NaN code on both sides). Source of the instructions' rounding: PTX ISA 9.0, "cvt": .rn rounds to
// nearest even, .satfinite turns what lies beyond 448 into +-448 and NaN into 0x7f.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "protocol/payload.hpp"
#include "protocol/small_float.hpp"

namespace moe_ep::cuda {

// A codec reads and writes `Bits`; pack() makes one 32-bit word of two 16-bit elements.
struct DeviceBf16 {
  using Bits = std::uint16_t;
  static __device__ __forceinline__ float to_float(Bits bits) {
    return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
  }
  static __device__ __forceinline__ Bits from_float(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
  static __device__ __forceinline__ std::uint32_t pack(float even, float odd) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(even, odd);
    return static_cast<std::uint32_t>(__bfloat16_as_ushort(pair.y)) << 16 |
           __bfloat16_as_ushort(pair.x);
  }
};

struct DeviceFp16 {
  using Bits = std::uint16_t;
  static __device__ __forceinline__ float to_float(Bits bits) {
    return __half2float(__ushort_as_half(bits));
  }
  static __device__ __forceinline__ Bits from_float(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
  static __device__ __forceinline__ std::uint32_t pack(float even, float odd) {
    const __half2 pair = __floats2half2_rn(even, odd);
    return static_cast<std::uint32_t>(__half_as_ushort(pair.y)) << 16 | __half_as_ushort(pair.x);
  }
};

struct DeviceFp32 {
  using Bits = std::uint32_t;
  static __device__ __forceinline__ float to_float(Bits bits) { return __uint_as_float(bits); }
  static __device__ __forceinline__ Bits from_float(float value) { return __float_as_uint(value); }
};

// Elements of a lane's vector: kElements consecutive ones in one register group.
template <class Codec, int Elements>
__device__ __forceinline__ float element_of(const uint4& vector, int i) {
  const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
  if constexpr (sizeof(typename Codec::Bits) == 4) {
    return Codec::to_float(words[i]);
  } else {
    return Codec::to_float(static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16)));
  }
}

// Four e4m3 codes of four floats, the first in the lowest byte. Infinities must be gone already.
__device__ __forceinline__ std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
  return high << 16 | low;
}

// The two values of two codes; exact, since binary16 holds every e4m3 value.
__device__ __forceinline__ float2 unpack_e4m3(std::uint32_t two_codes) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two_codes), __NV_E4M3);
  return __half22float2(__half2(halves));
}

}  // namespace moe_ep::cuda
