// What a peer announced of its combine rows, against what this rank expects.
#pragma once

#include <cstdint>

#include "protocol/step.hpp"
#include "protocol/wait.hpp"

namespace moe_ep::protocol {

// Makes `status` a mismatch if `peer`'s combine_code() differs; the first difference stays.
MOE_EP_HD inline void check_combine_code(const CombineParams& params, std::int32_t peer,
                                         std::uint32_t code, StepStatus& status) {
  const std::uint32_t want = combine_code(params.row_bytes, params.format);
  const std::uint32_t got = code & ~kRowsPlaced;
  if (status.result == StepResult::kMismatch || got == want) return;
  const bool same_size = combine_code_row_bytes(got) == combine_code_row_bytes(want);
  status.result = StepResult::kMismatch;
  status.peer = peer;
  status.field =
      static_cast<std::int32_t>(same_size ? CombineField::kFormat : CombineField::kRowBytes);
  status.want = same_size ? params.format : params.row_bytes;
  status.got = same_size ? combine_code_format(got) : combine_code_row_bytes(got);
}

}  // namespace moe_ep::protocol
