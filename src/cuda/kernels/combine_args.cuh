// The one argument of the combine kernels and the tables its blocks share.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/route.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/kernels/launch.hpp"
#include "protocol/output.hpp"
#include "protocol/step.hpp"

namespace moe_ep::cuda {

// Vectors a lane holds of a row that is copied.
inline constexpr int kCopyVectors = 4;

struct CombineArgs {
  protocol::CombineParams params;
  CombineOutput output;
  FailureRecord* record = nullptr;
  bool early = false;
  bool rehearse = false;
  bool push = false;         // large step: peers say where their rows may land
  bool ask_landing = false;  // this rank wants its rows pushed
  bool place = false;        // own rows are not in the combine region in wire form
  bool finite_only = false;  // FP8 was asked for, but rows are too short for it to pay
  bool wide_output = false;
  std::uint32_t code = 0;        // combine_code() of the step
  std::int32_t chunk_shift = 0;  // log2 of the rows that share a flag
  std::int32_t num_tiles = 0;    // of chunk_rows() rows
  std::int32_t push_blocks = 0;  // that send and do not sum, if there is anything to send
  std::int32_t copy_width = 1;   // of a row that is copied as it is
  std::int32_t copy_pieces = 1;
  std::int32_t rounds_per_unit = 1;  // of a warp's share of a token's sum
  FastDivide units;                  // divides by units_per_token
  std::int64_t wire_stride = 0;      // distance of rows where they land
  std::int64_t landing_begin = 0;    // offsets of the room for them in the own slice
  std::int64_t landing_end = 0;

  MOE_EP_HD std::int32_t units_per_token() const { return units.divisor; }
  MOE_EP_HD std::int32_t chunk_rows() const { return 1 << chunk_shift; }
  // This rank's expert output for row `row` of block `src`, as the caller left it.
  MOE_EP_HD const std::byte* own_row(std::int32_t src, std::int32_t row) const {
    if (params.expert_output == nullptr) return params.row(params.workspace.rank, src, row);
    const std::int64_t index = static_cast<std::int64_t>(src) * params.tokens_per_rank + row;
    return params.expert_output + index * params.expert_output_stride;
  }
  // The flag of a chunk of `src`'s rows in `owner`'s slice.
  MOE_EP_HD std::uint32_t* chunk(std::int32_t owner, std::int32_t src, std::int32_t index) const {
    return reinterpret_cast<std::uint32_t*>(params.workspace.slice(owner) +
                                            params.workspace.layout.chunk_row(src)) +
           index;
  }
};

// In shared memory. Steps that neither push nor place rows use only `sources`.
struct CombineTables {
  const std::byte* sources[kMaxBlockThreads / kWarp][kMaxTopK];  // of each warp's token
  std::int64_t landing_in[kMaxRanks];  // where peers push to, in the own slice; -1: they do not
  std::int64_t
      landing_out[kMaxRanks];  // where this rank pushes to, in a peer's slice; -1: it pulls
  std::int32_t recv_counts[kMaxRanks];
  SharedMask active;
  SharedMask placed;  // ranks whose rows need no chunk flags
};

__device__ __forceinline__ Patience patience_of(const CombineArgs& args) {
  return {args.params.timeout_ns, &args.params.workspace.header()->failed};
}

}  // namespace moe_ep::cuda
