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

// Rows that a lane holds at once: answers to peers, and answers to add up.
template <int Side>
inline constexpr int kLamportBatch = Side + 1;

// Ranks of an own token's hop list from number `first` on, all loaded at once.
template <int Batch>
__device__ __forceinline__ void load_hops(std::int32_t (&ranks)[Batch],
                                          const protocol::Workspace& workspace, std::int32_t token,
                                          std::int32_t first) {
  const protocol::Hop* hops = workspace.hops(token);
#pragma unroll
  for (int b = 0; b < Batch; ++b)
    ranks[b] = first + b < workspace.layout.hops_per_token() ? hops[first + b].rank : -1;
}

// A block's piece of the answers to token `unit.token` of every peer that sent it here, `Side`
// peers at once, from the next rank on.
//
// Everything is loaded side by side before any of it is looked at: rows of tokens that did not
// come, too, and the tags of both banks, since what says which of them count is as far away.
template <int Bytes, int Vectors, int Side>
struct LamportAnswers {
  LamportUnit unit;
  const std::byte* from;  // the lane's first vector in the expert output's block of rank 0
  const std::byte* tags_from;
  std::int64_t to;  // in this rank's landing rows in any slice, bank 0
  LaneWords<Bytes> held[Side][Vectors];
  std::uint64_t tags[Side][protocol::kLamportBanks];

  // What can be said before anything is loaded.
  __device__ __forceinline__ void place(const LamportCombineArgs& args) {
    const protocol::Workspace& workspace = args.params.workspace;
    from = args.rows + unit.token * args.stride + unit.offset;
    tags_from = workspace.own() + args.tag_grid.at(0, unit.token);
    to = args.row_grid.at(workspace.rank, unit.token) + unit.offset;
  }

  // Number `number` behind the own rank; -1: there is none.
  static __device__ __forceinline__ std::int32_t peer(const protocol::Workspace& workspace,
                                                      std::int32_t number) {
    const std::int32_t num_ranks = workspace.layout.num_ranks;
    if (number >= num_ranks) return -1;
    const std::int32_t rank = workspace.rank + number;
    return rank < num_ranks ? rank : rank - num_ranks;
  }

  __device__ __forceinline__ void load(const LamportCombineArgs& args, std::int32_t first) {
    const std::uint32_t row_bytes = args.shape.row_bytes;
    const std::int64_t block = args.params.tokens_per_rank * args.stride;
#pragma unroll
    for (int b = 0; b < Side; ++b) {
      const std::int32_t src = peer(args.params.workspace, first + b);
      if (src < 0) continue;
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        const std::uint32_t at = unit.at<Bytes>(v);
        if (at < row_bytes) {
          held[b][v].load_row(from + src * block + LamportUnit::apart<Bytes>(v), row_bytes - at,
                              args.shape.width);
        }
      }
      // The id tags of the dispatch are still there; the user's ids may have been overwritten.
#pragma unroll
      for (int bank = 0; bank < protocol::kLamportBanks; ++bank) {
        tags[b][bank] = load_relaxed(reinterpret_cast<const std::uint64_t*>(
            tags_from + src * args.tag_grid.block + bank * args.tag_grid.bank));
      }
    }
  }

  __device__ __forceinline__ void push(const LamportCombineArgs& args, std::int32_t first,
                                       Epoch epoch) const {
    const std::uint32_t row_bytes = args.shape.row_bytes;
    const protocol::Workspace& workspace = args.params.workspace;
    std::byte* const there = workspace.base + (to + args.row_grid.bank_of(epoch));
#pragma unroll
    for (int b = 0; b < Side; ++b) {
      const std::int32_t src = peer(workspace, first + b);
      const std::uint64_t tag = lamport_bank(epoch) == 0 ? tags[b][0] : tags[b][1];
      if (src < 0 || protocol::tag_epoch(tag) != epoch ||
          protocol::tag_value(tag) == protocol::kNotHere) {
        continue;
      }
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        if (unit.at<Bytes>(v) < row_bytes) {
          held[b][v]
              .sendable(Sentinel::of(protocol::kCombineWords))
              .send(there + src * workspace.slice_stride + LamportUnit::apart<Bytes>(v));
        }
      }
    }
  }
};

// One lane's sums of a unit.
template <int Bytes, int Vectors>
struct LamportSums {
  static constexpr int kElements = Bytes / 2;
  float sum[Vectors][kElements];

  __device__ __forceinline__ void start(bool empty) {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
#pragma unroll
      for (int i = 0; i < kElements; ++i)
        sum[v][i] = empty ? protocol::kEmptySum : protocol::kSumIdentity;
    }
  }
  __device__ __forceinline__ void add(const LaneWords<Bytes> (&row)[Vectors]) {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        sum[v][i] =
            protocol::sum_next(sum[v][i], element_of<DeviceBf16, kElements>(row[v].group(), i));
      }
    }
  }
  template <bool kQuantised>
  __device__ __forceinline__ void store(const LamportCombineArgs& args,
                                        const LamportUnit& unit) const {
    const std::int32_t elements = args.params.elements;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const auto first = static_cast<std::int32_t>(unit.at<Bytes>(v) / 2);
      // Rows of an odd number of elements end within a word; they are not quantised.
      if (!kQuantised && Bytes == 4 && first + 1 == elements) {
        const float last[1] = {sum[v][0]};
        store_sums<false>(args.output, unit.token, first, true, elements, last, false);
      } else {
        store_sums<kQuantised>(args.output, unit.token, first, first < elements, elements, sum[v],
                               args.wide_output);
      }
    }
  }
};

// Sums the unit's piece of this rank's token. False, with the failure recorded, if an answer did
// not come. The whole warp.
template <int Bytes, int Vectors, int Side, bool kQuantised>
__device__ __forceinline__ bool sum_answers(const LamportCombineArgs& args, const LamportUnit& unit,
                                            Epoch epoch) {
  const std::uint32_t row_bytes = args.shape.row_bytes;
  constexpr int kBatch = kLamportBatch<Side>;
  const protocol::Workspace& workspace = args.params.workspace;
  const protocol::LamportLayout& layout = workspace.layout.lamport;
  const std::int32_t me = workspace.rank;
  const std::uint32_t sentinel = protocol::sentinel_of(protocol::kCombineWords);
  const std::int64_t block = args.params.tokens_per_rank * args.stride;
  const std::int64_t landing_block = args.row_grid.block;
  std::byte* taken = workspace.own() + args.row_grid.at(0, unit.token) +
                     args.row_grid.bank_of(epoch) + unit.offset;
  const std::byte* own = args.rows + me * block + unit.token * args.stride + unit.offset;
  LamportSums<Bytes, Vectors> sums;
  bool more = true;
  for (std::int32_t first = 0; more && first < workspace.layout.hops_per_token(); first += kBatch) {
    std::int32_t rank[kBatch];
    load_hops(rank, workspace, unit.token, first);
    LaneWords<Bytes> rows[kBatch][Vectors];
    std::uint32_t pending = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      more = more && rank[b] >= 0 && rank[b] < layout.num_ranks;
      if (!more) {
        rank[b] = -1;
        continue;
      }
      if (rank[b] != me) {
        pending |= 1u << b;
        continue;
      }
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        const std::uint32_t at = unit.at<Bytes>(v);
        if (at < row_bytes) {
          rows[b][v].load_row(own + LamportUnit::apart<Bytes>(v), row_bytes - at, args.shape.width);
        }
      }
    }
    if (first == 0) sums.start(rank[0] < 0);
    const bool arrived = pending == 0 || wait_until(lamport_patience(args), [&] {
                           std::uint32_t missing = 0;
#pragma unroll
                           for (int b = 0; b < kBatch; ++b) {
                             if ((pending >> b & 1) == 0) continue;
                             const std::byte* from = taken + rank[b] * landing_block;
#pragma unroll
                             for (int v = 0; v < Vectors; ++v) {
                               if (unit.at<Bytes>(v) < row_bytes) {
                                 rows[b][v].poll(from + LamportUnit::apart<Bytes>(v));
                               }
                             }
                           }
#pragma unroll
                           for (int b = 0; b < kBatch; ++b) {
                             if ((pending >> b & 1) == 0) continue;
#pragma unroll
                             for (int v = 0; v < Vectors; ++v) {
                               if (unit.at<Bytes>(v) < row_bytes && !rows[b][v].arrived(sentinel)) {
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
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        if (unit.at<Bytes>(v) < row_bytes) {
          LaneWords<Bytes>::arm(taken + rank[b] * landing_block + LamportUnit::apart<Bytes>(v),
                                sentinel);
        }
      }
    }
  }
  sums.template store<kQuantised>(args, unit);
  return true;
}

// A block's pieces, from number `first` on.
template <int Bytes, int Vectors, int Side, bool kQuantised>
__device__ __forceinline__ void combine_rows(const LamportCombineArgs& args, std::int32_t first) {
  const protocol::CombineParams& params = args.params;
  LamportAnswers<Bytes, Vectors, Side> answers;
  answers.unit = LamportUnit::of<Bytes>(args.shape, first);
  answers.place(args);
  forget(answers.unit.token);
  forget(answers.unit.offset);
  forget(answers.from);
  forget(answers.tags_from);
  forget(answers.to);
  wait_for_producers();
  answers.load(args, 1);
  const StepState state = StepState::load(params.workspace.header());
  if (__any_sync(~0u, state.failed)) return;  // no barrier follows
  const Epoch epoch = state.epoch;
  // Each round pushes a piece and sums the one before, while the next one is loaded; the last round
  // only sums.
  LamportUnit pushed{};
#pragma unroll 1
  for (std::int32_t round = 0;; ++round) {
    forget(round);  // no copy of the code for the first one
    const LamportUnit unit = answers.unit;
    const bool pushes = unit.token < params.tokens_per_rank;
    if (pushes) {
      answers.push(args, 1, epoch);
      for (std::int32_t number = 1 + Side; number < params.workspace.layout.num_ranks;
           number += Side) {
        answers.load(args, number);
        answers.push(args, number, epoch);
      }
      answers.unit.advance(args.shape);
      if (answers.unit.token < params.tokens_per_rank) {
        answers.place(args);
        answers.load(args, 1);
      }
    }
    if (round > 0 && pushed.token < params.num_tokens &&
        !sum_answers<Bytes, Vectors, Side, kQuantised>(args, pushed, epoch)) {
      return;
    }
    if (!pushes) return;
    pushed = unit;
  }
}

template <int Bytes, int Vectors, int Side, bool kQuantised>
__global__ void __launch_bounds__(kLamportThreads, kLamportBlocksPerSm)
    lamport_combine_kernel(const __grid_constant__ LamportCombineArgs args) {
  if (args.early) launch_dependents();
  const auto first = static_cast<std::int32_t>(blockIdx.x) - kCombineHeadBlocks;
  if (first >= 0) {
    combine_rows<Bytes, Vectors, Side, kQuantised>(args, first);
  } else {
    combine_lines(shared_object<LamportLines>(), args);
  }
  if constexpr (kQuantised) {
    clear_scale_padding(args.output, args.params.num_tokens, args.params.elements);
  }
}

}  // namespace moe_ep::cuda
