// How a lane's sums leave: rounded to an element type, or quantised with their neighbours.
//
// A lane holds kElements consecutive sums of one token, the lanes of a warp consecutive groups of
// them. A block of 16 or 32 elements that share a scale lies in neighbouring lanes, aligned, so its
// largest magnitude is a few shuffles away. All lanes of the warp take part; those beyond the row's
// end hold nothing.
#pragma once

#include <cstdint>

#include "cuda/device/convert.cuh"
#include "cuda/device/vector.cuh"
#include "protocol/block_scale.hpp"
#include "protocol/output.hpp"
#include "protocol/scale_layout.hpp"

namespace moe_ep::cuda {

// Stores `Bytes` of `words`, as wide as they are or byte by byte.
template <int Bytes>
__device__ __forceinline__ void store_bytes(std::byte* to, const std::uint32_t* words, bool wide) {
  if (wide) {
    if constexpr (Bytes % 16 == 0) {
#pragma unroll
      for (int at = 0; at < Bytes; at += 16) {
        store_vector<16>(to + at, make_uint4(words[at / 4], words[at / 4 + 1], words[at / 4 + 2],
                                             words[at / 4 + 3]));
      }
    } else if constexpr (Bytes == 8) {
      store_vector<8>(to, make_uint4(words[0], words[1], 0, 0));
    } else {
      store_vector<Bytes>(to, make_uint4(words[0], 0, 0, 0));
    }
    return;
  }
#pragma unroll
  for (int at = 0; at < Bytes; ++at) {
    to[at] = static_cast<std::byte>(words[at / 4] >> (at % 4 * 8));
  }
}

template <class Codec, int Elements>
__device__ __forceinline__ void store_plain(std::byte* to, const float (&sum)[Elements],
                                            bool wide) {
  constexpr int kSize = sizeof(typename Codec::Bits);
  if constexpr (Elements == 1) {
    *reinterpret_cast<typename Codec::Bits*>(to) = Codec::from_float(sum[0]);
  } else if constexpr (kSize == 4) {
    std::uint32_t words[Elements];
#pragma unroll
    for (int i = 0; i < Elements; ++i)
      words[i] = Codec::from_float(sum[i]);
    store_bytes<4 * Elements>(to, words, wide);
  } else {
    std::uint32_t words[Elements / 2];
#pragma unroll
    for (int i = 0; i < Elements; i += 2)
      words[i / 2] = Codec::pack(sum[i], sum[i + 1]);
    store_bytes<2 * Elements>(to, words, wide);
  }
}

// Codes of two elements a byte; a single element takes its neighbour's from the next lane. `whole`:
// the row does not end within the lane's elements.
template <class Format, int Elements>
__device__ __forceinline__ void store_codes(std::byte* to, const std::uint8_t (&codes)[Elements],
                                            bool valid, bool whole, bool even_lane, bool wide) {
  if constexpr (Format::kElementsPerByte == 1) {
    if (!whole) {
      if (valid) *to = static_cast<std::byte>(codes[0]);
      return;
    }
    std::uint32_t words[(Elements + 3) / 4] = {};
#pragma unroll
    for (int i = 0; i < Elements; ++i)
      words[i / 4] |= std::uint32_t{codes[i]} << (i % 4 * 8);
    if (valid) store_bytes<Elements>(to, words, wide);
  } else if constexpr (Elements == 1) {
    const std::uint32_t own = valid ? codes[0] : 0;
    const std::uint32_t next = __shfl_down_sync(~0u, own, 1);
    if (valid && even_lane) *to = static_cast<std::byte>(own | next << 4);
  } else {
    std::uint32_t words[(Elements / 2 + 3) / 4] = {};
#pragma unroll
    for (int i = 0; i < Elements; ++i)
      words[i / 8] |= std::uint32_t{codes[i]} << (i % 8 * 4);
    if (valid) store_bytes<Elements / 2>(to, words, wide);
  }
}

template <class Format, int Elements>
__device__ __forceinline__ void store_quantised(const CombineOutput& output, std::int64_t token,
                                                std::int32_t first, bool valid,
                                                std::int32_t elements, const float (&sum)[Elements],
                                                bool wide) {
  constexpr int kBlock = Format::kBlockElements;
  static_assert(kBlock % Elements == 0 && kBlock / Elements <= kWarp);
  protocol::BlockAmax amax;
  if (valid) {
#pragma unroll
    for (int i = 0; i < Elements; ++i)
      amax.add(sum[i]);
  }
#pragma unroll
  for (int distance = 1; distance < kBlock / Elements; distance *= 2) {
    const std::uint32_t bits = __shfl_xor_sync(~0u, amax.bits, distance);
    const bool finite = __shfl_xor_sync(~0u, static_cast<int>(amax.all_finite), distance) != 0;
    if (bits > amax.bits) amax.bits = bits;
    amax.all_finite = amax.all_finite && finite;
  }
  const std::uint8_t scale = Format::scale(amax, output.scalar_scale);
  std::uint8_t codes[Elements];
#pragma unroll
  for (int i = 0; i < Elements; ++i)
    codes[i] = Format::value(sum[i], scale, output.scalar_scale);
  bool whole = true;
  if constexpr (Elements == 2) {
    whole = first + 1 != elements;
    if (!whole) codes[1] = 0;
  }
  store_codes<Format>(output.rows + token * output.stride + first / Format::kElementsPerByte, codes,
                      valid, whole, first % 2 == 0, wide);
  if (valid && first % kBlock == 0) {
    const std::int64_t cols = (elements + kBlock - 1) / kBlock;
    output.scales[protocol::scale_offset(output.sf_layout, token, first / kBlock, cols)] = scale;
  }
}

// Elements `first`, `first + 1`, ... of `token`; `valid` unless the lane is beyond the row's end.
template <bool Quantised, int Elements>
__device__ __forceinline__ void store_sums(const CombineOutput& output, std::int64_t token,
                                           std::int32_t first, bool valid, std::int32_t elements,
                                           const float (&sum)[Elements], bool wide) {
  if constexpr (Quantised) {
    if (output.format == OutputFormat::kMxfp8) {
      store_quantised<protocol::Mxfp8>(output, token, first, valid, elements, sum, wide);
    } else if (output.format == OutputFormat::kMxfp4) {
      store_quantised<protocol::Mxfp4>(output, token, first, valid, elements, sum, wide);
    } else {
      store_quantised<protocol::Nvfp4>(output, token, first, valid, elements, sum, wide);
    }
    return;
  }
  if (!valid) return;
  std::byte* row = output.rows + token * output.stride;
  const auto at = static_cast<std::int64_t>(first);
  if (output.dtype == kBFloat16) {
    store_plain<DeviceBf16>(row + 2 * at, sum, wide);
  } else if (output.dtype == kFloat16) {
    store_plain<DeviceFp16>(row + 2 * at, sum, wide);
  } else {
    store_plain<DeviceFp32>(row + 4 * at, sum, wide);
  }
}

// Zeros the padding of a quantised output's scales: all threads of the grid, no order.
__device__ inline void clear_scale_padding(const CombineOutput& output, std::int64_t rows,
                                           std::int32_t elements) {
  if (output.format == OutputFormat::kPlain || output.sf_layout == SfLayout::kLinear) return;
  const int block = output.format == OutputFormat::kNvfp4 ? protocol::Nvfp4::kBlockElements
                                                          : protocol::Mxfp8::kBlockElements;
  const std::int64_t cols = (elements + block - 1) / block;
  const std::int64_t padded_cols = protocol::scale_padded_cols(output.sf_layout, cols);
  const std::int64_t beside = padded_cols - cols;  // of a row that holds a token
  const std::int64_t below =
      (protocol::scale_padded_rows(output.sf_layout, rows) - rows) * padded_cols;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * beside + below; i += step) {
    const std::int64_t j = i - rows * beside;
    const std::int64_t row = j < 0 ? i / beside : rows + j / padded_cols;
    const std::int64_t col = j < 0 ? cols + i % beside : j % padded_cols;
    output.scales[protocol::scale_offset(output.sf_layout, row, col, cols)] = 0;
  }
}

}  // namespace moe_ep::cuda
