#include "cuda/kernels/combine_kernel.cuh"

namespace moe_ep::cuda {

CombineVariant combine_fp16(bool fp8, bool wide, bool quantised) {
  return combine_variant<DeviceFp16>(fp8, wide, quantised);
}

}  // namespace moe_ep::cuda
