// WorkspaceLayout: where everything in a slice lies. One function computes every offset; the size a
// user is told, the plan that is printed and the addresses that are touched all come from it.
//
//   region       bytes                      writer -> reader
//   header       128                        own rank (step state)
//   lines        128 x R                    rank src writes line src -> own rank
//   recv_counts  4 x R                      own rank, after it accepted the lines
//   send_counts  4 x R                      own rank, while routing
//   hops         8 x C x min(R, 64)         own rank: dispatch writes, combine reads
//   arrivals     1024 x R                   rank src writes row src -> own rank (devices only)
//   chunks       16 x R x C                 rank src writes row src -> own rank (devices only)
//   eplb         4 x R x E'                 rank src writes row src -> own rank
//   lamport_*    lamport_layout.hpp         where Lamport steps are enabled
//   counters     64 x R                     rank src adds to line src -> own rank (counted writes)
//   accounts     16 x R                     own rank
//   landing      combine row x R x C        rank dst writes block dst -> own rank (counted writes)
//   combine      row x R x T, fixed start   own rank writes -> peers read (fence)
//   dispatch     rows of every payload, R x T each; ends at the slice's end
//
// Regions start at multiples of kAlign. The combine region starts at the same offset in every step
// and grows upwards, the dispatch region ends with the slice and grows downwards, each payload at a
// multiple of kAlign: a step of any size, dtype or payload mix stays within its own reservation and
// cannot touch rows of an earlier step's combine that a slow peer still reads. All offsets are
// 64-bit.
//
// A combine whose peers push rows (devices, large steps; src/cuda/kernels/combine.hpp) lets them
// land between the end of this step's combine region and the slice's end. Those bytes are free
// then: the rank has entered combine, so its experts are done with the dispatched rows, and its
// peers have entered the same step, so nobody reads rows of an earlier one.
#pragma once

#include <cstddef>
#include <cstdint>

#include <moe_ep/rank_mask.hpp>
#include <moe_ep/types.hpp>

#include "protocol/epoch.hpp"
#include "protocol/lamport_layout.hpp"
#include "protocol/signature.hpp"

namespace moe_ep::protocol {

inline constexpr std::int64_t kAlign = 128;
inline constexpr std::uint64_t kSliceMagic = 0x6d6f655f65700001;  // "moe_ep", version 1

MOE_EP_HD constexpr std::int64_t align_up(std::int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// State of the own rank's steps. Only the own rank reads or writes it. Devices keep here what a
// replayed launch must find in memory; hosts use the first fields.
struct SliceHeader {
  std::uint64_t magic;
  std::int32_t rank;               // hosts, for who inspects the slice: whose it is
  std::uint32_t combine_arrivals;  // devices: blocks of the running combine that have finished
  // One 16-byte word to devices. A dispatch reads `combined` and writes `epoch`, a combine the
  // other way round: no block finds what its own launch changes.
  Epoch epoch;           // of the last step begun
  std::uint32_t failed;  // devices: not 0 once a step has failed; then steps end at once
  Epoch combined;        // devices: the last step whose combine has begun
  // Devices: what the next fence dispatch must await of the last combine: 0 nothing, 1 rows that
  // peers pushed, 2 a Lamport step whose end the peers have not been told.
  std::uint32_t drain;
  RankMask active;                       // of the last dispatch; on devices its combine reads it
  Epoch lamport_stamped[kLamportBanks];  // when all tags of a bank were last stamped
  // Hosts, the same: where the rest lies (0: not there), R and C.
  std::int64_t lamport_lines;
  std::int64_t counters;
  std::int64_t accounts;
  std::int32_t num_ranks;
  std::int32_t max_tokens;
  std::byte padding[24];
};

// What rank src tells the slice's owner, in line src. The signature is written before the dispatch
// flag with plain stores, and read after it. Each flag and the word behind it are one aligned
// 64-bit word to devices, which therefore need no fence between the two.
struct PeerLine {
  std::uint32_t dispatch_flag;  // epoch: release by src's dispatch, acquire by the owner's
  std::int32_t num_rows;        // tokens src sent to the owner in this step
  std::uint32_t combine_flag;   // epoch: release by src's combine, acquire by the owner's
  std::uint32_t combine_code;   // src's combine rows: combine_code()
  std::uint32_t landing_flag;   // devices, epoch: release by src's combine, acquire by the owner's
  std::uint32_t landing;        // where in src's slice the owner's rows go, in kAlign; kNoLanding
  std::uint32_t done_flag;      // devices, epoch: src is past the step's combine
  std::uint32_t edge_flag;  // devices, epoch: src is past all before the step's Lamport dispatch
  StepSignature signature;
  std::uint32_t blocks_flag;  // devices, epoch: written and read like dispatch_flag
  std::int32_t num_blocks;    // of src's dispatch: each but the last has a word of the arrivals
  std::byte padding[128 - 40 - sizeof(StepSignature)];
};
static_assert(sizeof(SliceHeader) == 128 && sizeof(PeerLine) == 128);

// Blocks of a device's dispatch at most, and the words that a rank has for them in each slice.
inline constexpr std::int32_t kArrivals = 256;

// PeerLine::landing of a rank that pulls instead.
inline constexpr std::uint32_t kNoLanding = ~0u;

// Parts of a combine row that are announced one by one, at most.
inline constexpr std::int32_t kMaxParts = 4;

// One visit of a token: which rank it went to, and in which row of this rank's block there.
struct Hop {
  std::int32_t rank;  // -1 ends a token's list
  std::int32_t row;
};

// What a slice holds for transports that not every workspace has.
struct TransportRegions {
  LamportSpec lamport;
  std::int64_t counted_row_bytes = 0;  // bytes of a combine row; 0: no counted writes
};

// Bytes that rank src has put into the owner's rows, modulo 2^64; line src of the counters.
struct CountedLine {
  std::uint64_t dispatch_bytes;  // add-release by src, acquire by the owner
  std::uint64_t combine_bytes;   // the same
  std::byte padding[48];
};
// What the owner has expected of rank src so far.
struct CountedAccount {
  std::uint64_t dispatch_bytes;
  std::uint64_t combine_bytes;
};
static_assert(sizeof(CountedLine) == 64 && sizeof(CountedAccount) == 16);

struct WorkspaceLayout {
  std::int32_t num_ranks = 1;
  std::int32_t max_tokens = 0;  // C
  std::int32_t eplb_experts = 0;
  std::int64_t slice_bytes = 0;

  std::int64_t lines = 0;
  std::int64_t recv_counts = 0;
  std::int64_t send_counts = 0;
  std::int64_t hops = 0;
  std::int64_t arrivals = 0;
  std::int64_t chunks = 0;
  std::int64_t eplb = 0;
  LamportLayout lamport;
  bool counted = false;
  std::int64_t counters = 0;
  std::int64_t accounts = 0;
  std::int64_t landing = 0;
  std::int64_t combine = 0;

  // The most ranks one token can visit.
  MOE_EP_HD constexpr std::int32_t hops_per_token() const {
    return num_ranks < kMaxTopK ? num_ranks : kMaxTopK;
  }

  MOE_EP_HD constexpr std::int64_t chunks_per_rank() const {
    return std::int64_t{kMaxParts} * max_tokens;
  }

  static MOE_EP_HD constexpr WorkspaceLayout make(std::int32_t num_ranks, std::int32_t max_tokens,
                                                  std::int32_t eplb_experts,
                                                  std::int64_t slice_bytes,
                                                  const TransportRegions& regions = {}) {
    WorkspaceLayout layout;
    layout.num_ranks = num_ranks;
    layout.max_tokens = max_tokens;
    layout.eplb_experts = eplb_experts;
    layout.slice_bytes = slice_bytes;
    const std::int64_t ranks = num_ranks;
    layout.lines = sizeof(SliceHeader);
    layout.recv_counts = layout.lines + ranks * static_cast<std::int64_t>(sizeof(PeerLine));
    layout.send_counts = layout.recv_counts + align_up(4 * ranks);
    layout.hops = layout.send_counts + align_up(4 * ranks);
    layout.arrivals = layout.hops + align_up(static_cast<std::int64_t>(sizeof(Hop)) * max_tokens *
                                             layout.hops_per_token());
    layout.chunks = layout.arrivals + 4 * kArrivals * ranks;
    layout.eplb = layout.chunks + align_up(4 * ranks * layout.chunks_per_rank());
    layout.lamport = LamportLayout::make(num_ranks, regions.lamport,
                                         layout.eplb + align_up(4 * ranks * eplb_experts));
    layout.counted = regions.counted_row_bytes > 0;
    const std::int64_t lines = layout.counted ? ranks : 0;
    layout.counters = layout.lamport.end;
    layout.accounts =
        layout.counters + align_up(lines * static_cast<std::int64_t>(sizeof(CountedLine)));
    layout.landing =
        layout.accounts + align_up(lines * static_cast<std::int64_t>(sizeof(CountedAccount)));
    layout.combine =
        layout.landing + combine_bytes(num_ranks, max_tokens, regions.counted_row_bytes);
    return layout;
  }

  // Most bytes that the payloads of a step may take, each aligned on its own.
  static MOE_EP_HD constexpr std::int64_t dispatch_bytes(std::int32_t num_ranks,
                                                         std::int32_t max_tokens,
                                                         std::int64_t row_bytes_sum) {
    const std::int64_t rows = static_cast<std::int64_t>(num_ranks) * max_tokens;
    return rows == 0 || row_bytes_sum == 0
               ? 0
               : align_up(rows * row_bytes_sum) + (kMaxPayloads - 1) * kAlign;
  }
  static MOE_EP_HD constexpr std::int64_t combine_bytes(std::int32_t num_ranks,
                                                        std::int32_t max_tokens,
                                                        std::int64_t row_bytes) {
    return align_up(static_cast<std::int64_t>(num_ranks) * max_tokens * row_bytes);
  }

  // Bytes of a slice whose steps carry up to these rows.
  static MOE_EP_HD constexpr std::int64_t required_bytes(std::int32_t num_ranks,
                                                         std::int32_t max_tokens,
                                                         std::int32_t eplb_experts,
                                                         std::int64_t dispatch_row_bytes,
                                                         std::int64_t combine_row_bytes,
                                                         const TransportRegions& regions = {}) {
    return make(num_ranks, max_tokens, eplb_experts, 0, regions).combine +
           combine_bytes(num_ranks, max_tokens, combine_row_bytes) +
           dispatch_bytes(num_ranks, max_tokens, dispatch_row_bytes);
  }

  MOE_EP_HD constexpr std::int64_t line(std::int32_t src) const {
    return lines + src * static_cast<std::int64_t>(sizeof(PeerLine));
  }
  // First word of src's arrivals.
  MOE_EP_HD constexpr std::int64_t arrival_row(std::int32_t src) const {
    return arrivals + 4ll * src * kArrivals;
  }
  // First word of src's chunks.
  MOE_EP_HD constexpr std::int64_t chunk_row(std::int32_t src) const {
    return chunks + 4ll * src * chunks_per_rank();
  }
  MOE_EP_HD constexpr std::int64_t eplb_row(std::int32_t src) const {
    return eplb + 4ll * src * eplb_experts;
  }

  // Bytes between the combine region's start and the slice's last aligned byte.
  MOE_EP_HD constexpr std::int64_t payload_room() const {
    return slice_bytes / kAlign * kAlign - combine;
  }
};

// Where the payloads of one step lie: packed downwards from the slice's end. Depends only on values
// that the step signature covers, so every rank computes the same offsets.
struct PayloadPlacement {
  std::int64_t begin = 0;  // lowest offset
  std::int64_t offsets[kMaxPayloads] = {};

  static MOE_EP_HD constexpr PayloadPlacement make(const WorkspaceLayout& layout,
                                                   std::int32_t tokens_per_rank,
                                                   const std::int32_t* row_bytes,
                                                   std::int32_t num_payloads) {
    PayloadPlacement placement;
    const std::int64_t rows = static_cast<std::int64_t>(layout.num_ranks) * tokens_per_rank;
    std::int64_t offset = layout.slice_bytes / kAlign * kAlign;
    for (std::int32_t payload = num_payloads - 1; payload >= 0; --payload) {
      offset -= align_up(rows * row_bytes[payload]);
      placement.offsets[payload] = offset;
    }
    placement.begin = offset;
    return placement;
  }
};

}  // namespace moe_ep::protocol
