// The combine kernels by what they are compiled for.
#pragma once

#include "cuda/kernels/combine_args.cuh"

namespace moe_ep::cuda {

// Threads that a multiprocessor holds of a variant: with 72 registers each, or 128 where outputs
// are quantised or rows are FP8.
inline constexpr std::int32_t combine_threads(bool fp8, bool quantised) {
  return fp8 || quantised ? 512 : 896;
}

struct CombineVariant {
  void (*pull)(CombineArgs);
  void (*push)(CombineArgs);
  std::int32_t round;  // elements that a warp adds at once
};

// @param fp8 rows travel in the FP8 wire format
// @param wide rows are made of 16-byte vectors
// @param quantised the output is in a block-scaled format
CombineVariant combine_bf16(bool fp8, bool wide, bool quantised);
CombineVariant combine_fp16(bool fp8, bool wide, bool quantised);
CombineVariant combine_fp32(bool fp8, bool wide, bool quantised);

}  // namespace moe_ep::cuda
