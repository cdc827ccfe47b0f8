// Which table of kernels this CPU gets.
#include "host/kernels.hpp"

namespace moe_ep::host {

#if !defined(MOE_EP_HAS_AVX2)  // kernels_avx2.cpp is not part of this build
const Kernels* avx2_kernels() {
  return nullptr;
}
#endif

const Kernels& kernels() {
  static const Kernels* const kBest =
      avx2_kernels() != nullptr ? avx2_kernels() : &generic_kernels();
  return *kBest;
}

}  // namespace moe_ep::host
