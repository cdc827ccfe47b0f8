// The plain structs that describe one step to the protocol: no pointers to state, constants only.
#pragma once

#include <cstddef>
#include <cstdint>

#include <moe_ep/rank_mask.hpp>
#include <moe_ep/types.hpp>

#include "protocol/geometry.hpp"
#include "protocol/layout.hpp"

namespace moe_ep::protocol {

// A rank's view of the symmetric memory.
struct Workspace {
  std::byte* base = nullptr;
  std::int64_t slice_stride = 0;
  WorkspaceLayout layout;
  std::int32_t rank = 0;

  MOE_EP_HD std::byte* slice(std::int32_t peer) const { return base + peer * slice_stride; }
  MOE_EP_HD std::byte* own() const { return slice(rank); }
  MOE_EP_HD SliceHeader* header() const { return reinterpret_cast<SliceHeader*>(own()); }
  // Line `src` of `owner`'s slice: written by src, read by owner.
  MOE_EP_HD PeerLine* line(std::int32_t owner, std::int32_t src) const {
    return reinterpret_cast<PeerLine*>(slice(owner) + layout.line(src));
  }
  // The same of the words for the blocks of src's dispatch.
  MOE_EP_HD std::uint32_t* arrivals(std::int32_t owner, std::int32_t src) const {
    return reinterpret_cast<std::uint32_t*>(slice(owner) + layout.arrival_row(src));
  }
  MOE_EP_HD std::int32_t* recv_counts() const {
    return reinterpret_cast<std::int32_t*>(own() + layout.recv_counts);
  }
  MOE_EP_HD std::int32_t* send_counts() const {
    return reinterpret_cast<std::int32_t*>(own() + layout.send_counts);
  }
  MOE_EP_HD Hop* hops(std::int32_t token) const {
    return reinterpret_cast<Hop*>(own() + layout.hops) +
           static_cast<std::int64_t>(token) * layout.hops_per_token();
  }
};

// One tensor that travels row by row.
struct Payload {
  const std::byte* rows = nullptr;
  std::int64_t stride = 0;  // bytes between rows
};

struct DispatchParams {
  Workspace workspace;
  RankMask active;
  bool follows_default_mask =
      false;                         // devices: take part as the default mask says, not as `active`
  std::int32_t num_tokens = 0;       // n, of this rank
  std::int32_t tokens_per_rank = 0;  // T
  Ownership ownership;
  std::int32_t top_k = 0;
  const std::byte* topk_ids = nullptr;
  std::int64_t topk_ids_stride = 0;  // bytes
  bool wide_ids = false;             // int64
  // Payload `ids_payload` is written from topk_ids as int32, void picks and rows without a token as
  // invalid_expert_id. -1: ids travel as any other payload.
  std::int32_t ids_payload = -1;
  std::int32_t invalid_expert_id = -1;
  std::int32_t num_payloads = 0;
  Payload payloads[kMaxPayloads];
  StepSignature signature;
  PayloadPlacement placement;
  const std::int32_t* eplb_local_stats = nullptr;  // null: none travel in this step
  std::uint64_t timeout_ns = 0;

  MOE_EP_HD std::int64_t row_bytes(std::int32_t payload) const {
    return signature.fields[kFirstRowBytes + payload];
  }
  // Row `row` of block `src` of a payload in `owner`'s slice.
  MOE_EP_HD std::byte* row(std::int32_t owner, std::int32_t payload, std::int32_t src,
                           std::int32_t row) const {
    const std::int64_t index = static_cast<std::int64_t>(src) * tokens_per_rank + row;
    return workspace.slice(owner) + placement.offsets[payload] + index * row_bytes(payload);
  }
  MOE_EP_HD IdRow ids(std::int32_t token) const {
    return {topk_ids + token * topk_ids_stride, wide_ids};
  }
};

// How rows of the combine region are coded; the same on every rank.
enum CombineFormat : std::int32_t {
  kCombineBf16 = 0,
  kCombineFp16 = 1,
  kCombineFp32 = 2,
  kCombineFp8Wire = 4,  // bit: rows hold FP8 codes and scales
};

enum class CombineField : std::int32_t { kRowBytes = 0, kFormat = 1 };

// PeerLine::combine_code: row bytes, CombineFormat and whether the rows lie in the combine region
// when the flag is raised (always on the host; a device may announce them part by part). Row
// sizes from 2^28 on lose their upper bits: the code is compared, not computed with.
inline constexpr std::uint32_t kRowsPlaced = 8;

MOE_EP_HD constexpr std::uint32_t combine_code(std::int64_t row_bytes, std::int32_t format) {
  return static_cast<std::uint32_t>(row_bytes) << 4 | static_cast<std::uint32_t>(format);
}
MOE_EP_HD constexpr std::int64_t combine_code_row_bytes(std::uint32_t code) {
  return code >> 4;
}
MOE_EP_HD constexpr std::int32_t combine_code_format(std::uint32_t code) {
  return static_cast<std::int32_t>(code & 7);
}

struct CombineParams {
  Workspace workspace;
  RankMask active;
  std::int32_t num_tokens = 0;
  std::int32_t tokens_per_rank = 0;
  std::int32_t elements = 0;                 // H
  std::int64_t row_bytes = 0;                // H x itemsize: distance of rows in the combine region
  std::int32_t format = kCombineBf16;        // CombineFormat
  const std::byte* expert_output = nullptr;  // null: the rows are in the combine region already
  std::int64_t expert_output_stride = 0;     // bytes
  std::uint64_t timeout_ns = 0;
  Transport transport = Transport::kFence;  // of the dispatch

  // The expert output of row `row` of block `src`, wherever it lies.
  MOE_EP_HD const std::byte* expert_row(std::int32_t src, std::int32_t row_idx) const {
    if (expert_output == nullptr) return row(workspace.rank, src, row_idx);
    const std::int64_t index = static_cast<std::int64_t>(src) * tokens_per_rank + row_idx;
    return expert_output + index * expert_output_stride;
  }
  MOE_EP_HD std::byte* row(std::int32_t owner, std::int32_t src, std::int32_t row) const {
    const std::int64_t index = static_cast<std::int64_t>(src) * tokens_per_rank + row;
    return workspace.slice(owner) + workspace.layout.combine + index * row_bytes;
  }
};

}  // namespace moe_ep::protocol
