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
inline constexpr int kCopyVectors = 8;

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
  std::uint32_t code = 0;      // combine_code() of the step
  std::int32_t num_parts = 1;  // of a row, each with a flag of its own
  std::int32_t part_elements = 0;
  std::int32_t push_warps = 0;       // of a block, that send and do not sum, if there is anything
  std::int32_t copy_width = 1;       // of a row that is copied as it is
  std::int32_t rounds_per_unit = 1;  // of a warp's share of a token's sum
  FastDivide units;                  // divides by units_per_token
  std::int64_t wire_stride = 0;      // distance of rows where they land
  std::int64_t landing_begin = 0;    // offsets of the room for them in the own slice
  std::int64_t landing_end = 0;

  MOE_EP_HD std::int32_t units_per_token() const { return units.divisor; }
  // This rank's expert output for row `row` of block `src`, as the caller left it.
  MOE_EP_HD const std::byte* own_row(std::int32_t src, std::int32_t row) const {
    if (params.expert_output == nullptr) return params.row(params.workspace.rank, src, row);
    const std::int64_t index = static_cast<std::int64_t>(src) * params.tokens_per_rank + row;
    return params.expert_output + index * params.expert_output_stride;
  }
  // The flags of the parts of `src`'s row for a row of `owner`.
  MOE_EP_HD std::uint32_t* flags(std::int32_t owner, std::int32_t src, std::int32_t row) const {
    return reinterpret_cast<std::uint32_t*>(params.workspace.slice(owner) +
                                            params.workspace.layout.chunk_row(src)) +
           static_cast<std::int64_t>(row) * protocol::kMaxParts;
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
  SharedMask placed;  // ranks whose rows need no flags
};

__device__ __forceinline__ Patience patience_of(const CombineArgs& args) {
  return {args.params.timeout_ns, &args.params.workspace.header()->failed};
}

}  // namespace moe_ep::cuda
