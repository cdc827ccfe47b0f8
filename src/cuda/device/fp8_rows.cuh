// Rows in the low-precision wire format (protocol/fp8_wire.hpp), encoded and read by a warp.
//
// Two shapes. Wide: a lane holds 16 consecutive elements, 8 lanes a block of 128, a warp 512
// elements; rows and codes lie at multiples of 16 bytes. Narrow: a lane holds 4 elements of one
// block, 32 apart; anything goes. Both give the same bytes.
#pragma once

#include <cstdint>

#include "cuda/device/convert.cuh"
#include "cuda/device/vector.cuh"
#include "protocol/fp8_wire.hpp"

namespace moe_ep::cuda {

template <bool Wide>
inline constexpr int kFp8UnitElements = Wide ? 512 : protocol::kFp8BlockElements;

// A lane's part of an encoded unit.
template <bool Wide>
struct Fp8Codes {
  std::uint32_t words[Wide ? 4 : 1];
  float scale;
};

// A float that may lie at any even address.
__device__ __forceinline__ float load_scale(const std::byte* from, bool aligned) {
  if (aligned) return __uint_as_float(load_vector<4>(from).x);
  return __uint_as_float(load_vector<2>(from).x | load_vector<2>(from + 2).x << 16);
}
__device__ __forceinline__ void store_scale(std::byte* to, float scale, bool aligned) {
  const std::uint32_t bits = __float_as_uint(scale);
  if (aligned) {
    store_vector<4>(to, make_uint4(bits, 0, 0, 0));
  } else {
    store_vector<2>(to, make_uint4(bits, 0, 0, 0));
    store_vector<2>(to + 2, make_uint4(bits >> 16, 0, 0, 0));
  }
}

// Element of a unit that the lane's i-th value is.
template <bool Wide>
__device__ __forceinline__ std::int32_t fp8_element(int i) {
  return Wide ? 16 * lane_id() + i : lane_id() + kWarp * i;
}

// Encodes the unit that starts at element `first` of a plain row.
template <class Codec, bool Wide>
__device__ __forceinline__ Fp8Codes<Wide> encode_unit(const std::byte* row, std::int32_t first,
                                                      std::int32_t elements) {
  constexpr int kSize = sizeof(typename Codec::Bits);
  constexpr int kValues = Wide ? 16 : 4;
  constexpr int kBlockLanes = Wide ? 8 : kWarp;
  float values[kValues] = {};
  if constexpr (Wide) {
    if (first + fp8_element<Wide>(0) < elements) {
      const std::byte* at = row + static_cast<std::int64_t>(first + fp8_element<Wide>(0)) * kSize;
#pragma unroll
      for (int vector = 0; vector < kSize; ++vector) {
        const uint4 held = load_vector<16>(at + 16 * vector);
#pragma unroll
        for (int i = 0; i < 16 / kSize; ++i) {
          values[vector * (16 / kSize) + i] = element_of<Codec, 16 / kSize>(held, i);
        }
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const std::int64_t element = first + fp8_element<Wide>(i);
      if (element >= elements) continue;
      values[i] = element_of<Codec, 1>(load_vector<kSize>(row + element * kSize), 0);
    }
  }
  std::uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < kValues; ++i)
    amax = max(amax, protocol::fp8_amax_bits(values[i]));
#pragma unroll
  for (int distance = 1; distance < kBlockLanes; distance *= 2) {
    amax = max(amax, __shfl_xor_sync(~0u, amax, distance));
  }
  Fp8Codes<Wide> codes;
  codes.scale = protocol::fp8_scale(amax);
  const protocol::Fp8Encoder encoder = protocol::fp8_encoder(codes.scale);
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const float scaled =
        protocol::mul_rn(protocol::mul_rn(values[i], encoder.lift), encoder.inverse);
    values[i] =
        protocol::is_finite(values[i]) ? scaled : protocol::bits_float(protocol::kQuietNanBits);
  }
#pragma unroll
  for (int word = 0; word < kValues / 4; ++word) {
    codes.words[word] = pack_e4m3(values[4 * word], values[4 * word + 1], values[4 * word + 2],
                                  values[4 * word + 3]);
  }
  return codes;
}

template <bool Wide>
__device__ __forceinline__ void store_codes(const Fp8Codes<Wide>& codes, std::byte* row,
                                            std::int32_t first, std::int32_t elements) {
  if constexpr (Wide) {
    const std::int32_t element = first + fp8_element<Wide>(0);
    if (element < elements) {
      store_vector<16>(row + element,
                       make_uint4(codes.words[0], codes.words[1], codes.words[2], codes.words[3]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int32_t element = first + fp8_element<Wide>(i);
      if (element < elements) row[element] = static_cast<std::byte>(codes.words[0] >> (8 * i));
    }
  }
}

// The scale of the lane's block, by one lane a block. `block` is that of the unit's first element.
template <bool Wide, class Store>
__device__ __forceinline__ void for_block_leader(std::int32_t first, std::int32_t elements,
                                                 Store&& store) {
  const std::int32_t element = first + (Wide ? 16 * lane_id() : 0);
  if (lane_id() % (Wide ? 8 : kWarp) == 0 && element < elements) {
    store(element / protocol::kFp8BlockElements);
  }
}

// A whole unit of a wire row that does not overlap the plain row.
template <class Codec, bool Wide>
__device__ __forceinline__ void encode_to(std::byte* wire, const std::byte* row, std::int32_t first,
                                          std::int32_t elements) {
  const auto codes = encode_unit<Codec, Wide>(row, first, elements);
  store_codes<Wide>(codes, wire, first, elements);
  for_block_leader<Wide>(first, elements, [&](std::int32_t block) {
    store_scale(wire + protocol::fp8_scales_offset(elements) + 4 * block, codes.scale, Wide);
  });
}

// Encodes a row where it lies. The whole block of threads; `scales` is shared memory for one float
// a block of elements. Codes are half as long as elements or shorter, so that they never overtake
// the elements still to be read, but scales would: they wait in shared memory until all are read.
template <class Codec, bool Wide>
__device__ __forceinline__ void encode_in_place(std::byte* row, std::int32_t elements,
                                                float* scales) {
  constexpr std::int32_t kUnit = kFp8UnitElements<Wide>;
  for (std::int32_t round = 0; round < elements; round += num_warps() * kUnit) {
    const std::int32_t first = round + warp_id() * kUnit;
    Fp8Codes<Wide> codes;
    if (first < elements) codes = encode_unit<Codec, Wide>(row, first, elements);
    __syncthreads();
    if (first < elements) {
      store_codes<Wide>(codes, row, first, elements);
      for_block_leader<Wide>(first, elements,
                             [&](std::int32_t block) { scales[block] = codes.scale; });
    }
  }
  __syncthreads();
  const auto num_blocks = static_cast<std::int32_t>(protocol::fp8_num_blocks(elements));
  for (std::int32_t block = static_cast<std::int32_t>(threadIdx.x); block < num_blocks;
       block += static_cast<std::int32_t>(blockDim.x)) {
    store_scale(row + protocol::fp8_scales_offset(elements) + 4 * block, scales[block], Wide);
  }
  __syncthreads();
}

}  // namespace moe_ep::cuda
