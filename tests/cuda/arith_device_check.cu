// Compile check: the protocol's arithmetic as device code. Nothing runs; the object is inspected
// for fused multiply-adds that nobody asked for (see the test that compiles it).
#include "protocol/payload.hpp"
#include "protocol/quantize.hpp"
#include "protocol/reduce.hpp"

namespace arith_device_check {

using namespace moe_ep;
using namespace moe_ep::protocol;

template <class In, class Out>
__global__ void combine(const typename In::Bits* values, int num_rows, int hidden,
                        typename Out::Bits* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= hidden) return;
  const float sum =
      sum_element(num_rows, [&](int r) { return In::to_float(values[r * hidden + i]); });
  out[i] = Out::from_float(sum);
  out[hidden + i] = combine_element<In, Out>(values + i * num_rows, num_rows);
}

template <class In>
__global__ void fp8_encode_block(const typename In::Bits* row, std::uint8_t* codes, float* scale) {
  std::uint32_t amax = 0;
  for (int i = 0; i < kFp8BlockElements; ++i) {
    const std::uint32_t bits = fp8_amax_bits(In::to_float(row[i]));
    amax = bits > amax ? bits : amax;
  }
  *scale = fp8_scale(amax);
  const Fp8Encoder encoder = fp8_encoder(*scale);
  const int i = static_cast<int>(threadIdx.x);
  codes[i] = fp8_wire_pays(kFp8BlockElements, sizeof(typename In::Bits))
                 ? fp8_encode(In::to_float(row[i]), encoder)
                 : static_cast<std::uint8_t>(finite_or_nan<In>(row[i]));
}

__global__ void fp8_sum(const std::uint8_t* codes, const float* scales, int num_rows, float* out) {
  float max_scale = 0.0f;
  for (int r = 0; r < num_rows; ++r)
    max_scale = max_scale < scales[r] ? scales[r] : max_scale;
  const float lift = fp8_lift(max_scale);
  const int i = static_cast<int>(threadIdx.x);
  const float sum = sum_element(num_rows, [&](int r) {
    return fp8_decode(codes[r * kFp8BlockElements + i], mul_rn(scales[r], lift));
  });
  out[i] = fp8_unlift(sum, lift);
}

template <class Format>
__global__ void quantize(const float* x, int cols, float scalar_scale, SfLayout layout,
                         std::uint8_t* values, std::uint8_t* scales) {
  const int block = static_cast<int>(threadIdx.x);
  constexpr int kBytes = Format::kBlockElements / Format::kElementsPerByte;
  scales[scale_offset(layout, blockIdx.x, block, cols)] =
      quantize_block<Format>(x + block * Format::kBlockElements, Format::kBlockElements,
                             scalar_scale, values + block * kBytes);
}

template __global__ void combine<Bf16, Bf16>(const Bf16::Bits*, int, int, Bf16::Bits*);
template __global__ void combine<Fp16, Bf16>(const Fp16::Bits*, int, int, Bf16::Bits*);
template __global__ void combine<Bf16, Fp16>(const Bf16::Bits*, int, int, Fp16::Bits*);
template __global__ void combine<Fp32, Fp16>(const Fp32::Bits*, int, int, Fp16::Bits*);
template __global__ void combine<Fp16, Fp32>(const Fp16::Bits*, int, int, Fp32::Bits*);
template __global__ void fp8_encode_block<Bf16>(const Bf16::Bits*, std::uint8_t*, float*);
template __global__ void fp8_encode_block<Fp16>(const Fp16::Bits*, std::uint8_t*, float*);
template __global__ void fp8_encode_block<Fp32>(const Fp32::Bits*, std::uint8_t*, float*);
template __global__ void quantize<Mxfp8>(const float*, int, float, SfLayout, std::uint8_t*,
                                         std::uint8_t*);
template __global__ void quantize<Mxfp4>(const float*, int, float, SfLayout, std::uint8_t*,
                                         std::uint8_t*);
template __global__ void quantize<Nvfp4>(const float*, int, float, SfLayout, std::uint8_t*,
                                         std::uint8_t*);

}  // namespace arith_device_check
