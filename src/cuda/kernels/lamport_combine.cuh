// The Lamport combine kernel (lamport.hpp). Blocks from 1 on: each pushes its pieces of this rank's
// answers to the peers' tokens, and sums the same pieces of the answers to its own.
//
// Sums are in ascending rank order whatever arrives first; the own answer is read where the experts
// left it. Blocks push before they wait, as in dispatch.
#pragma once

#include "cuda/device/shared.cuh"
#include "cuda/device/store.cuh"
#include "cuda/kernels/lamport_lines.cuh"
#include "protocol/reduce.hpp"

namespace moe_ep::cuda {

// Rows that a lane holds at once.
template <int Vectors>
inline constexpr int kLamportBatch = Vectors == 1 ? 4 : 2;

// Pushes the unit's piece of the answers to the token `unit.token` of every peer that sent it here.
//
// Everything is loaded side by side before any of it is looked at: rows of tokens that did not
// come, too, and the tags of both banks, since what says which of them count is as far away.
template <bool kWide, int Vectors>
__device__ __forceinline__ void push_answers(const LamportCombineArgs& args,
                                             const LamportUnit& unit, const StepState& state) {
  constexpr int kBatch = kLamportBatch<Vectors>;
  const protocol::CombineParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const protocol::LamportLayout& layout = workspace.layout.lamport;
  const LamportShape& shape = args.shape;
  const std::int32_t me = workspace.rank;
  for (std::int32_t first = 0; first < layout.num_ranks; first += kBatch) {
    std::uint64_t tags[kBatch][protocol::kLamportBanks];
    LaneWords<kWide> held[kBatch][Vectors];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::int32_t src = first + b;
      if (src >= layout.num_ranks || src == me) continue;
      const std::byte* row = params.expert_row(src, unit.token);
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        const std::uint32_t at = unit.at<kWide>(v);
        if (at < shape.row_bytes) {
          held[b][v].load_row(row + at, shape.row_bytes - at, shape.width);
        }
      }
      // The id tags of the dispatch are still there; the user's ids may have been overwritten.
#pragma unroll
      for (int bank = 0; bank < protocol::kLamportBanks; ++bank) {
        tags[b][bank] = load_relaxed(protocol::lamport_tags(workspace, me, bank, src, unit.token));
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::int32_t src = first + b;
      if (src >= layout.num_ranks || src == me) continue;
      const std::uint64_t tag = lamport_bank(state.epoch) == 0 ? tags[b][0] : tags[b][1];
      if (protocol::tag_epoch(tag) != state.epoch ||
          protocol::tag_value(tag) == protocol::kNotHere || state.failed) {
        continue;
      }
      std::byte* to = workspace.slice(src) + layout.combine_row(me, unit.token);
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        const std::uint32_t at = unit.at<kWide>(v);
        if (at < shape.row_bytes) held[b][v].sendable(protocol::kCombineWords).send(to + at);
      }
    }
  }
}

// One lane's sums of a unit.
template <bool kWide, int Vectors>
struct LamportSums {
  static constexpr int kElements = LaneWords<kWide>::kBytes / 2;
  float sum[Vectors][kElements];

  __device__ __forceinline__ void start(bool empty) {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
#pragma unroll
      for (int i = 0; i < kElements; ++i)
        sum[v][i] = empty ? protocol::kEmptySum : protocol::kSumIdentity;
    }
  }
  __device__ __forceinline__ void add(const LaneWords<kWide> (&row)[Vectors]) {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const uint4 words = make_uint4(row[v].words.x, row[v].words.y, 0, 0);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        sum[v][i] = protocol::sum_next(sum[v][i], element_of<DeviceBf16, kElements>(words, i));
      }
    }
  }
  template <bool kQuantised>
  __device__ __forceinline__ void store(const LamportCombineArgs& args,
                                        const LamportUnit& unit) const {
    const std::int32_t elements = args.params.elements;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const auto first = static_cast<std::int32_t>(unit.at<kWide>(v) / 2);
      // Rows of an odd number of elements end within a word; they are not quantised.
      if (!kQuantised && !kWide && first + 1 == elements) {
        const float last[1] = {sum[v][0]};
        store_sums<false>(args.output, unit.token, first, true, elements, last, false);
      } else {
        store_sums<kQuantised>(args.output, unit.token, first, first < elements, elements, sum[v],
                               args.wide_output);
      }
    }
  }
};

// Sums the unit's piece of this rank's token `unit.token`. False, with the failure recorded, if an
// answer did not come. The whole warp.
template <bool kWide, int Vectors, bool kQuantised>
__device__ __forceinline__ bool sum_answers(const LamportCombineArgs& args, const LamportUnit& unit,
                                            Epoch epoch) {
  constexpr int kBatch = kLamportBatch<Vectors>;
  const protocol::CombineParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const protocol::LamportLayout& layout = workspace.layout.lamport;
  const LamportShape& shape = args.shape;
  const std::int32_t me = workspace.rank;
  const std::uint32_t sentinel = protocol::sentinel_of(protocol::kCombineWords);
  const protocol::Hop* hops = workspace.hops(unit.token);
  const std::int32_t capacity = workspace.layout.hops_per_token();
  LamportSums<kWide, Vectors> sums;
  bool more = true;
  for (std::int32_t first = 0; more && first < capacity; first += kBatch) {
    std::int32_t rank[kBatch];
    LaneWords<kWide> rows[kBatch][Vectors];
    std::uint32_t pending = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      rank[b] = more && first + b < capacity ? hops[first + b].rank : -1;
      if (rank[b] >= workspace.layout.num_ranks) rank[b] = -1;
      more = rank[b] >= 0;
      if (!more) continue;
      if (rank[b] != me) {
        pending |= 1u << b;
        continue;
      }
      const std::byte* row = params.expert_row(me, unit.token);
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        const std::uint32_t at = unit.at<kWide>(v);
        if (at < shape.row_bytes) {
          rows[b][v].load_row(row + at, shape.row_bytes - at, shape.width);
        }
      }
    }
    if (first == 0) sums.start(rank[0] < 0);
    const bool arrived =
        pending == 0 || wait_until(lamport_patience(args), [&] {
          std::uint32_t missing = 0;
#pragma unroll
          for (int b = 0; b < kBatch; ++b) {
            if ((pending >> b & 1) == 0) continue;
            const std::byte* from = workspace.own() + layout.combine_row(rank[b], unit.token);
#pragma unroll
            for (int v = 0; v < Vectors; ++v) {
              const std::uint32_t at = unit.at<kWide>(v);
              if (at < shape.row_bytes) rows[b][v].poll(from + at);
            }
          }
#pragma unroll
          for (int b = 0; b < kBatch; ++b) {
            if ((pending >> b & 1) == 0) continue;
#pragma unroll
            for (int v = 0; v < Vectors; ++v) {
              if (unit.at<kWide>(v) < shape.row_bytes && !rows[b][v].arrived(sentinel)) {
                missing |= 1u << b;
              }
            }
          }
          pending &= missing;
          return pending == 0;
        });
    if (!arrived) {
      RankMask missing;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if ((pending >> b & 1) != 0) missing.set(rank[b]);
      }
      record_timeout(workspace.header(), args.record, Phase::kCombine, epoch, missing);
    }
    if (!__all_sync(~0u, arrived)) return false;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (rank[b] < 0) continue;
      sums.add(rows[b]);
      if (rank[b] == me) continue;
      std::byte* landing = workspace.own() + layout.combine_row(rank[b], unit.token);
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        const std::uint32_t at = unit.at<kWide>(v);
        if (at < shape.row_bytes) LaneWords<kWide>::arm(landing + at, sentinel);
      }
    }
  }
  sums.template store<kQuantised>(args, unit);
  return true;
}

template <bool kWide, int Vectors, bool kQuantised>
__device__ __forceinline__ void combine_rows(const LamportCombineArgs& args) {
  wait_for_producers();
  const StepState state = StepState::load(args.params.workspace.header());
  const auto stride = static_cast<std::int32_t>(gridDim.x) - 1;
  auto index = static_cast<std::int32_t>(blockIdx.x) - 1;
  LamportUnit unit = LamportUnit::of<kWide>(args.shape, index);
  push_answers<kWide, Vectors>(args, unit, state);
  if (__any_sync(~0u, state.failed)) return;  // no barrier follows
  for (;;) {
    index += stride;
    const bool more = index < args.shape.num_units;
    LamportUnit next{};
    if (more) {
      next = LamportUnit::of<kWide>(args.shape, index);
      push_answers<kWide, Vectors>(args, next, state);
    }
    if (unit.token < args.params.num_tokens &&
        !sum_answers<kWide, Vectors, kQuantised>(args, unit, state.epoch)) {
      return;
    }
    if (!more) return;
    unit = next;
  }
}

template <bool kWide, int Vectors, bool kQuantised>
__global__ void __launch_bounds__(kLamportThreads, kLamportBlocksPerSm)
    lamport_combine_kernel(const __grid_constant__ LamportCombineArgs args) {
  if (args.early) launch_dependents();
  if (blockIdx.x == 0) {
    combine_lines(shared_object<LamportLines>(), args);
  } else {
    combine_rows<kWide, Vectors, kQuantised>(args);
  }
  if constexpr (kQuantised) {
    clear_scale_padding(args.output, args.params.num_tokens, args.params.elements);
  }
}

}  // namespace moe_ep::cuda
