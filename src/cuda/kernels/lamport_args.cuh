// Arguments of the Lamport kernels and how their blocks share a step.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/landing.cuh"
#include "cuda/device/route.cuh"
#include "cuda/device/status.cuh"
#include "cuda/kernels/launch.hpp"
#include "protocol/output.hpp"
#include "protocol/step.hpp"
#include "protocol/transport/lamport_dispatch.hpp"
#include "protocol/transport/lamport_reset.hpp"

namespace moe_ep::cuda {

// Small blocks: their few warps wait for nothing but their own words.
inline constexpr std::int32_t kLamportThreads = 128;
inline constexpr std::int32_t kLamportWarps = kLamportThreads / kWarp;
// With 64 registers a thread a multiprocessor holds 8 blocks.
inline constexpr std::int32_t kLamportBlocksPerSm = 8;

// How rows are cut. A unit is one piece of one token, for a block; block 0 has the lines.
struct LamportShape {
  std::int32_t num_units = 0;
  FastDivide pieces;             // divides by the pieces of a token
  std::int32_t first_piece = 0;  // of the row; a dispatch has the tags before it
  std::uint32_t row_bytes = 0;
  std::uint32_t piece_bytes = 0;
  std::int32_t width = 0;  // of the users' rows, 4 bytes at most unless lanes hold 8
};

// A lane's place in a unit. Its vectors lie kLamportThreads vectors apart.
struct LamportUnit {
  std::int32_t token;
  bool tags;             // and no part of the row
  std::uint32_t offset;  // of the lane's first vector in the row

  template <bool kWide>
  static __device__ __forceinline__ LamportUnit of(const LamportShape& shape, std::int32_t unit) {
    const std::int32_t token = shape.pieces(unit);
    const std::int32_t piece = unit - token * shape.pieces.divisor - shape.first_piece;
    return {token, piece < 0,
            static_cast<std::uint32_t>(piece) * shape.piece_bytes +
                threadIdx.x * LaneWords<kWide>::kBytes};
  }
  template <bool kWide>
  __device__ __forceinline__ std::uint32_t at(int vector) const {
    return offset + static_cast<std::uint32_t>(vector) * kLamportThreads * LaneWords<kWide>::kBytes;
  }
};

struct LamportDispatchArgs {
  protocol::DispatchParams params;
  const RankMask* default_mask = nullptr;
  FailureRecord* record = nullptr;
  FastOwnership ownership;
  LamportShape shape;
  std::int32_t num_tags = 0;  // of a row that comes
  bool early = false;

  MOE_EP_HD const RankMask* mask() const {
    return default_mask != nullptr ? default_mask : &params.active;
  }
};

struct LamportCombineArgs {
  protocol::CombineParams params;
  CombineOutput output;
  FailureRecord* record = nullptr;
  LamportShape shape;
  bool wide_output = false;
  bool early = false;
};

template <class Args>
__device__ __forceinline__ Patience lamport_patience(const Args& args) {
  return {args.params.timeout_ns, &args.params.workspace.header()->failed};
}

__device__ __forceinline__ std::int32_t lamport_bank(Epoch epoch) {
  return protocol::LamportRules::bank(epoch);
}

}  // namespace moe_ep::cuda
