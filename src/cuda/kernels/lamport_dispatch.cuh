// The Lamport dispatch kernel (lamport.hpp). Behind the blocks for lines, edge and tags: each block
// sends its pieces of this rank's tokens to the peers they visit, and takes the same pieces of the
// peers' tokens.
//
// A unit, a piece or a token's tags, is sent at the latest when all earlier ones of its kind have
// been taken. By induction over the units nobody waits for ever while all blocks are resident
// (launch.hpp).
#pragma once

#include "cuda/device/shared.cuh"
#include "cuda/kernels/lamport_edge.cuh"
#include "cuda/kernels/lamport_tags.cuh"

namespace moe_ep::cuda {

// A block's piece of a row of this rank, on its way out.
template <int Bytes, int Vectors>
struct LamportPiece {
  LamportUnit unit;
  const std::byte* from;
  const std::byte* ids_from;
  std::int64_t landing;  // of the lane's first vector in any slice, bank 0
  LaneWords<Bytes> held[Vectors];
  LaneIds ids;

  // What can be said before anything is loaded.
  __device__ __forceinline__ void place(const LamportDispatchArgs& args) {
    const protocol::Payload& rows = args.params.payloads[0];
    from = rows.rows + unit.token * rows.stride + unit.offset;
    ids_from = LaneIds::place(args.params, unit.token);
    landing = args.row_grid.at(args.params.workspace.rank, unit.token) + unit.offset;
  }

  __device__ __forceinline__ void load(const LamportDispatchArgs& args) {
    const std::uint32_t row_bytes = args.shape.row_bytes;
    const bool exists = unit.token < args.params.num_tokens;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const std::uint32_t at = unit.at<Bytes>(v);
      if (exists && at < row_bytes) {
        held[v].load_row(from + LamportUnit::apart<Bytes>(v), row_bytes - at, args.shape.width);
      }
    }
    ids.load(args.params, ids_from, exists);
  }

  template <int Words>
  __device__ __forceinline__ void send(const LamportDispatchArgs& args, Epoch epoch,
                                       const RankBits<Words>& active) const {
    const RankBits<Words> ranks = ids.visits(args, active);
    const std::uint32_t row_bytes = args.shape.row_bytes;
    const protocol::Workspace& workspace = args.params.workspace;
    const std::int32_t me = workspace.rank;
    std::byte* const there = workspace.base + (landing + args.row_grid.bank_of(epoch));
    for_each_rank(ranks.without(me), [&](std::int32_t peer) {
      std::byte* to = there + peer * workspace.slice_stride;
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        if (unit.at<Bytes>(v) < row_bytes) {
          held[v].sendable(args.sentinel).send(to + LamportUnit::apart<Bytes>(v));
        }
      }
    });
    if (!ranks.test(me)) return;
    std::byte* kept = args.params.row(me, 0, me, unit.token) + unit.offset;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const std::uint32_t at = unit.at<Bytes>(v);
      if (at < row_bytes) {
        held[v].store_row(kept + LamportUnit::apart<Bytes>(v), row_bytes - at, args.shape.width);
      }
    }
  }
};

// Takes the unit's piece of every peer's token, `Side` peers side by side. A lane whose words are
// all there needs no tag; the tag tells it when there are none to come. False, with the failure
// recorded, if some lane's words did not come.
template <int Words, int Bytes, int Vectors, int Side>
__device__ __forceinline__ bool take_pieces(const LamportDispatchArgs& args,
                                            const LamportUnit& unit, RankBits<Words> peers,
                                            Epoch epoch) {
  const std::uint32_t row_bytes = args.shape.row_bytes;
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t me = workspace.rank;
  std::byte* const landings = workspace.own() + args.row_grid.at(0, unit.token) +
                              args.row_grid.bank_of(epoch) + unit.offset;
  for (;;) {
    std::int32_t src[Side];
    std::uint32_t pending = 0;
#pragma unroll
    for (int b = 0; b < Side; ++b) {
      src[b] = peers.take_lowest();
      if (src[b] >= 0) pending |= 1u << b;
    }
    if (pending == 0) return true;
    const bool arrived = wait_until(lamport_patience(args), [&] {
      std::uint64_t tag[Side];
      LaneWords<Bytes> words[Side][Vectors];
#pragma unroll
      for (int b = 0; b < Side; ++b) {
        if ((pending >> b & 1) == 0) continue;
        const std::byte* landing = landings + src[b] * args.row_grid.block;
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
          if (unit.at<Bytes>(v) < row_bytes) {
            words[b][v].poll(landing + LamportUnit::apart<Bytes>(v));
          }
        }
        tag[b] = load_relaxed(args.token_tags(me, src[b], unit.token, epoch));
      }
#pragma unroll
      for (int b = 0; b < Side; ++b) {
        if ((pending >> b & 1) == 0) continue;
        bool complete = true;
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
          complete = complete &&
                     (unit.at<Bytes>(v) >= row_bytes || words[b][v].arrived(args.sentinel.word));
        }
        if (complete) {
          std::byte* to = params.row(me, 0, src[b], unit.token) + unit.offset;
          std::byte* landing = landings + src[b] * args.row_grid.block;
#pragma unroll
          for (int v = 0; v < Vectors; ++v) {
            const std::uint32_t at = unit.at<Bytes>(v);
            if (at >= row_bytes) continue;
            words[b][v].store_row(to + LamportUnit::apart<Bytes>(v), row_bytes - at,
                                  args.shape.width);
            LaneWords<Bytes>::arm(landing + LamportUnit::apart<Bytes>(v), args.sentinel.word);
          }
        }
        if (complete || tag[b] == protocol::make_tag(epoch, protocol::kNotHere)) {
          pending &= ~(1u << b);
        }
      }
      return pending == 0;
    });
    if (!arrived) {
      std::int32_t late = -1;
#pragma unroll
      for (int b = 0; b < Side; ++b) {
        if ((pending >> b & 1) != 0) late = src[b];
      }
      record_late_rows<Words>(args, epoch, unit.token, late);
    }
    if (!__all_sync(~0u, arrived)) return false;
  }
}

// A block's pieces, from number `first` on.
template <int Words, int Bytes, int Vectors, int Side>
__device__ __forceinline__ void dispatch_rows(const LamportDispatchArgs& args, std::int32_t first) {
  const protocol::DispatchParams& params = args.params;
  LamportPiece<Bytes, Vectors> piece;
  piece.unit = LamportUnit::of<Bytes>(args.shape, first);
  piece.place(args);
  forget(piece.unit.token);
  forget(piece.unit.offset);
  forget(piece.from);
  forget(piece.ids_from);
  forget(piece.landing);
  wait_for_producers();
  piece.load(args);
  const auto active = args.active<Words>();
  const StepState state = StepState::load(params.workspace.header());
  if (__any_sync(~0u, state.failed)) return;  // no barrier follows
  const Epoch epoch = protocol::next_epoch(state.combined);
  // Each round sends a piece and takes the one before, while the next one is loaded; the last round
  // only takes.
  LamportUnit sent{};
#pragma unroll 1
  for (std::int32_t round = 0;; ++round) {
    forget(round);  // no copy of the code for the first one
    const LamportUnit unit = piece.unit;
    const bool sends = unit.token < params.tokens_per_rank;
    if (sends) {
      piece.send(args, epoch, active);
      piece.unit.advance(args.shape);
      if (piece.unit.token < params.tokens_per_rank) {
        piece.place(args);
        piece.load(args);
      }
    }
    if (round > 0 && !take_pieces<Words, Bytes, Vectors, Side>(
                         args, sent, active.without(params.workspace.rank), epoch)) {
      return;
    }
    if (!sends) return;
    sent = unit;
  }
}

template <int Words, int Bytes, int Vectors, int Side>
__global__ void __launch_bounds__(kLamportThreads, kLamportBlocksPerSm)
    lamport_dispatch_kernel(const __grid_constant__ LamportDispatchArgs args) {
  if (args.early) launch_dependents();
  const auto block = static_cast<std::int32_t>(blockIdx.x) - kDispatchHeadBlocks;
  if (block >= args.tags.num_blocks) {
    dispatch_rows<Words, Bytes, Vectors, Side>(args, block - args.tags.num_blocks);
  } else if (block >= 0) {
    dispatch_tags<Words>(args, block);
  } else if (blockIdx.x == 0) {
    dispatch_lines<Words>(shared_object<LamportLines>(), args);
  } else if (warp_id() == 0) {
    raise_edge<Words>(args);
  }
}

}  // namespace moe_ep::cuda
