// The host backend's bulk loops: copy a row, add rows, encode and add FP8 wire rows.
//
// A table of functions, chosen once by what the CPU can do. Every table computes the bits that
// src/protocol defines (reduce.hpp, fp8_wire.hpp); NaNs may differ in sign and payload. The tables
// differ in speed only, and the tests compare them.
//
// Common contract: pointers need no alignment; `elements` >= 0; outputs overlap no input unless
// said otherwise; all functions are pure and may run in many threads at once. They assume the
// default floating-point environment: the caller resets flush-to-zero and rounding modes around
// them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/payload.hpp"

namespace moe_ep::host {

using protocol::Codec;

// Most rows of one sum: a token goes to at most top_k ranks.
inline constexpr int kMaxSumRows = kMaxTopK;

// Bytes a rank puts in one phase from which on copy_streaming is the faster one, writing and
// reading taken together. Measured with two processes on a third-level cache of 32 MB: at 1.8 MB
// streaming takes 1.4 times as long, at 3.6 MB both take the same, from 5.5 MB on it saves a fifth.
inline constexpr std::int64_t kStreamingBytes = 4 << 20;

struct Kernels {
  const char* name;

  // memcpy. Faster than the C library's for rows of a few KB on some CPUs, see copy_long().
  void (*copy)(std::byte* dst, const std::byte* src, std::size_t bytes);

  // copy past the caches, complete when it returns: for rows of a transfer of kStreamingBytes or
  // more, which the reader would not find in a cache anyway.
  void (*copy_streaming)(std::byte* dst, const std::byte* src, std::size_t bytes);

  // out[i] = sum over rows of rows[r][i], in the order given (ascending rank). `num_rows` in
  // 0..kMaxSumRows; none writes +0.0. With `out_codec` kFp32 this is the float32 row that quantised
  // outputs start from.
  void (*sum_rows)(Codec codec, const std::byte* const* rows, int num_rows, std::int64_t elements,
                   Codec out_codec, std::byte* out);

  // Encodes a row for the FP8 wire; writes fp8_wire_row_bytes(elements) bytes (padding as zeros).
  void (*fp8_encode_row)(Codec codec, const std::byte* src, std::int64_t elements, std::byte* wire);

  // sum_rows for FP8 wire rows.
  void (*fp8_sum_rows)(const std::byte* const* wires, int num_rows, std::int64_t elements,
                       Codec out_codec, std::byte* out);

  // The row in its own type with every infinity turned into NaN: how a row travels where
  // fp8_wire_pays() says no. `dst` may be `src`.
  void (*finite_or_nan_row)(Codec codec, const std::byte* src, std::int64_t elements,
                            std::byte* dst);
};

// The best table for this CPU.
const Kernels& kernels();

// Portable C++.
const Kernels& generic_kernels();
// AVX2 and F16C; nullptr where the build or the CPU has none.
const Kernels* avx2_kernels();

}  // namespace moe_ep::host
