// The FP8 wire part of the AVX2 kernels; see Kernels for what each does.
#pragma once

#include "host/kernels.hpp"

namespace moe_ep::host {

void fp8_encode_row_avx2(Codec codec, const std::byte* src, std::int64_t elements, std::byte* wire);
void fp8_sum_rows_avx2(const std::byte* const* wires, int num_rows, std::int64_t elements,
                       Codec out_codec, std::byte* out);

}  // namespace moe_ep::host
