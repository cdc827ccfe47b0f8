#include "cuda/kernels/combine_kernel.cuh"

namespace moe_ep::cuda {

CombineVariant combine_bf16(bool fp8, bool wide, bool quantised) {
  return combine_variant<DeviceBf16>(fp8, wide, quantised);
}

}  // namespace moe_ep::cuda
