// The Lamport combine kernel (lamport.hpp). Blocks from 1 on: each pushes its pieces of this rank's
// answers to the peers' tokens, and sums the same pieces of the answers to its own.
// Blocks push before they wait, as in dispatch.
#pragma once

#include "cuda/device/shared.cuh"
#include "cuda/kernels/lamport_edge.cuh"
#include "cuda/kernels/lamport_sums.cuh"

namespace moe_ep::cuda {

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
