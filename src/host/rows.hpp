// HostRows: what combine does with a row on the host. One object per thread, since it has scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.hpp"
#include "host/kernels.hpp"
#include "protocol/step.hpp"

namespace moe_ep::host {

class HostRows {
 public:
  HostRows(const Kernels& kernels, const protocol::CombineParams& params,
           const CombineOutput& output);

  // Brings the expert output row `from` into wire form at `to`; the two may be the same row.
  void place(std::byte* to, const std::byte* from);

  // Room for the `index`-th wire row of a sum.
  std::byte* staging(std::int32_t index);

  // Writes token `token` of the result: the sum of `num_rows` wire rows, in the order given.
  void sum(std::int32_t token, const std::byte* const* rows, std::int32_t num_rows);

 private:
  void sum_as(protocol::Codec out_codec, const std::byte* const* rows, std::int32_t num_rows,
              std::byte* out);

  const Kernels& kernels_;
  const protocol::CombineParams& params_;
  const CombineOutput& output_;
  const protocol::Codec codec_;
  const bool fp8_wire_;   // rows travel as FP8
  const bool fp8_asked_;  // ... or would, were they not too short for it to pay
  std::vector<std::byte> scratch_;
  std::vector<std::unique_ptr<std::byte[]>> staging_;
};

// Zeros the padding of a quantised output's scale matrix: what no row writes.
void clear_scale_padding(const protocol::CombineParams& params, const CombineOutput& output);

}  // namespace moe_ep::host
