#include "cuda/kernels/combine_kernel.cuh"

namespace moe_ep::cuda {

CombineVariant combine_fp32(bool fp8, bool wide, bool quantised) {
  return combine_variant<DeviceFp32>(fp8, wide, quantised);
}

}  // namespace moe_ep::cuda
