// LamportLayout: the regions of a slice in which rows of Lamport steps land.
//
//   region            bytes                  writer -> reader
//   lamport_lines     128 x R x 2            rank src writes line src of a bank -> own rank
//   lamport_tags      tag row x R x M x 2    rank src writes rows of block src -> own rank
//   lamport_rows      row x R x M x 2        the same; armed and re-armed by the own rank
//   lamport_combine   combine row x R x M x 2  rank dst writes block dst -> own rank, which re-arms
//
// M is the largest T of a Lamport step. A row's place depends on its source and token only, never
// on the T or the widths of a step. There are two banks, one for odd and one for even epochs.
#pragma once

#include <cstdint>

#include <moe_ep/types.hpp>

#include "protocol/epoch.hpp"
#include "protocol/transport/sentinel.hpp"

namespace moe_ep::protocol {

inline constexpr std::int32_t kLamportBanks = 2;
// Bytes of a line: 16 tags.
inline constexpr std::int64_t kLamportLineBytes = 128;

// What Lamport steps of a workspace may carry. max_tokens 0: there are none.
struct LamportSpec {
  std::int32_t max_tokens = 0;     // M
  std::int32_t top_k = 0;          // ids and weights of a token
  std::int64_t value_bytes = 0;    // most bytes of a row of hidden_states
  std::int64_t scale_bytes = 0;    // most bytes of a row of scales
  std::int64_t combine_bytes = 0;  // bytes of a combine row
  DataWords words = DataWords::kBf16;
};

struct LamportLayout {
  std::int32_t num_ranks = 0;
  std::int32_t max_tokens = 0;  // M
  DataWords words = DataWords::kBf16;
  std::int64_t lines = 0;
  std::int64_t tags = 0;
  std::int64_t rows = 0;
  std::int64_t combine = 0;
  std::int64_t end = 0;
  std::int64_t tag_stride = 0;  // bytes from row to row
  std::int64_t row_stride = 0;
  std::int64_t combine_stride = 0;

  MOE_EP_HD constexpr bool enabled() const { return max_tokens > 0; }

  static MOE_EP_HD constexpr std::int64_t align16(std::int64_t bytes) {
    return (bytes + 15) / 16 * 16;
  }
  static MOE_EP_HD constexpr std::int64_t align128(std::int64_t bytes) {
    return (bytes + 127) / 128 * 128;
  }
  // Tags of a row of `bytes`: one for every 4 bytes.
  static MOE_EP_HD constexpr std::int64_t num_tags(std::int64_t bytes) { return (bytes + 3) / 4; }

  static MOE_EP_HD constexpr LamportLayout make(std::int32_t num_ranks, const LamportSpec& spec,
                                                std::int64_t begin) {
    LamportLayout layout;
    layout.num_ranks = num_ranks;
    layout.max_tokens = spec.max_tokens;
    layout.words = spec.words;
    const std::int64_t lines = spec.max_tokens > 0 ? num_ranks : 0;
    const std::int64_t rows = static_cast<std::int64_t>(num_ranks) * spec.max_tokens;
    layout.tag_stride =
        align16(8 * (2 * static_cast<std::int64_t>(spec.top_k) + num_tags(spec.scale_bytes)));
    layout.row_stride = align16(spec.value_bytes);
    layout.combine_stride = align16(spec.combine_bytes);
    layout.lines = begin;
    layout.tags = layout.lines + kLamportBanks * lines * kLamportLineBytes;
    layout.rows = layout.tags + align128(kLamportBanks * rows * layout.tag_stride);
    layout.combine = layout.rows + align128(kLamportBanks * rows * layout.row_stride);
    layout.end = layout.combine + align128(kLamportBanks * rows * layout.combine_stride);
    return layout;
  }

  // Offsets in a slice. `bank` is 0 or 1.
  MOE_EP_HD constexpr std::int64_t line(std::int32_t bank, std::int32_t src) const {
    return lines + (static_cast<std::int64_t>(bank) * num_ranks + src) * kLamportLineBytes;
  }
  MOE_EP_HD constexpr std::int64_t tag_row(std::int32_t bank, std::int32_t src,
                                           std::int32_t token) const {
    return tags + index(bank, src, token) * tag_stride;
  }
  MOE_EP_HD constexpr std::int64_t row(std::int32_t bank, std::int32_t src,
                                       std::int32_t token) const {
    return rows + index(bank, src, token) * row_stride;
  }
  MOE_EP_HD constexpr std::int64_t combine_row(std::int32_t bank, std::int32_t src,
                                               std::int32_t token) const {
    return combine + index(bank, src, token) * combine_stride;
  }

 private:
  MOE_EP_HD constexpr std::int64_t index(std::int32_t bank, std::int32_t src,
                                         std::int32_t token) const {
    return (static_cast<std::int64_t>(bank) * num_ranks + src) * max_tokens + token;
  }
};

}  // namespace moe_ep::protocol
