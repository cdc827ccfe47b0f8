// Arguments of the Lamport kernels and how their blocks share a step.
//
// Most of what a small step takes is the time of the few instructions between the end of its
// predecessor and its sends. So the host computes what it can, divisions are multiplications, and a
// block computes the addresses of its first unit before it waits for its producers (place();
// forget() keeps the compiler from doing it where they are used).
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

// Blocks before all others: one for the lines and, in a dispatch, one for the edge.
inline constexpr std::int32_t kDispatchHeadBlocks = 2;
inline constexpr std::int32_t kCombineHeadBlocks = 1;

// How rows are cut. A unit is one piece of one token, for a block, which has every so many of them.
struct LamportShape {
  FastDivide pieces;  // divides by the pieces of a token
  std::uint32_t row_bytes = 0;
  std::uint32_t piece_bytes = 0;
  std::uint32_t pieces_bytes = 0;  // of all pieces of a token, the last one taken for whole
  std::int32_t step_tokens = 0;    // from a block's unit to its next one
  std::uint32_t step_bytes = 0;
  std::int32_t width = 0;  // of the users' rows, 4 bytes at most unless lanes hold more
};

// A lane's place in a unit. Its vectors lie kLamportThreads vectors apart.
struct LamportUnit {
  std::int32_t token;
  std::uint32_t offset;  // of the lane's first vector in the row

  template <int Bytes>
  static __device__ __forceinline__ LamportUnit of(const LamportShape& shape, std::int32_t unit) {
    const std::int32_t token = shape.pieces(unit);
    const auto piece = static_cast<std::uint32_t>(unit - token * shape.pieces.divisor);
    return {token, piece * shape.piece_bytes + threadIdx.x * Bytes};
  }
  __device__ __forceinline__ void advance(const LamportShape& shape) {
    token += shape.step_tokens;
    offset += shape.step_bytes;
    if (offset < shape.pieces_bytes) return;
    offset -= shape.pieces_bytes;
    ++token;
  }
  template <int Bytes>
  static MOE_EP_HD constexpr std::uint32_t apart(int vector) {
    return static_cast<std::uint32_t>(vector * kLamportThreads * Bytes);
  }
  template <int Bytes>
  __device__ __forceinline__ std::uint32_t at(int vector) const {
    return offset + apart<Bytes>(vector);
  }
};

// The tags of a row are shared out to the warps in groups of 32. With fewer groups than warps,
// several warps have the same group, for different peers (parts, a power of two) or tokens.
struct LamportTagShape {
  std::int32_t num_blocks = 0;  // that have tags, each those of whole tokens
  std::int32_t num_tags = 0;    // of a row that comes
  std::int32_t groups = 0;
  std::int32_t parts = 0;
  std::int32_t tokens_at_once = 0;                // of a block
  std::int32_t first_tag[kMaxPayloads + 1] = {};  // of a payload behind the ids; then num_tags
  std::uint32_t whole_words = 0;  // bits of payloads whose rows are words all through
};

// Where the rows of one kind lie in a slice: row `token` of block `src` of a bank.
struct LamportGrid {
  std::int64_t begin = 0;
  std::int64_t bank = 0;  // bytes from one to the next
  std::int64_t block = 0;
  std::int64_t row = 0;

  static constexpr LamportGrid make(std::int64_t begin, std::int64_t row,
                                    const protocol::LamportLayout& layout) {
    return {begin, row * layout.num_ranks * layout.max_tokens, row * layout.max_tokens, row};
  }
  // Of bank 0.
  __device__ __forceinline__ std::int64_t at(std::int32_t src, std::int32_t token) const {
    return begin + src * block + token * row;
  }
  __device__ __forceinline__ std::int64_t bank_of(Epoch epoch) const {
    return protocol::LamportRules::bank(epoch) == 0 ? 0 : bank;
  }
};

struct LamportDispatchArgs {
  protocol::DispatchParams params;
  const RankMask* default_mask = nullptr;
  FailureRecord* record = nullptr;
  FastOwnership ownership;
  FastDivide tokens;  // divides by T
  LamportShape shape;
  LamportTagShape tags;
  LamportGrid row_grid;
  LamportGrid tag_grid;
  Sentinel sentinel;
  bool early = false;

  // The ranks that take part. By value: a pointer to arguments is a slow way to read them.
  template <int Words>
  __device__ __forceinline__ RankBits<Words> active() const {
    RankMask mask = params.active;
    if (default_mask != nullptr) {
#pragma unroll
      for (int word = 0; word < (Words + 1) / 2; ++word)
        mask.words[word] = load_relaxed(&default_mask->words[word]);
    }
    return to_bits<Words>(&mask);
  }
  __device__ __forceinline__ std::uint64_t* token_tags(std::int32_t owner, std::int32_t src,
                                                       std::int32_t token, Epoch epoch) const {
    return reinterpret_cast<std::uint64_t*>(params.workspace.slice(owner) +
                                            tag_grid.at(src, token) + tag_grid.bank_of(epoch));
  }
};

struct LamportCombineArgs {
  protocol::CombineParams params;
  const std::byte* rows = nullptr;  // the expert output, wherever it is
  std::int64_t stride = 0;
  CombineOutput output;
  FailureRecord* record = nullptr;
  LamportShape shape;
  LamportGrid row_grid;
  LamportGrid tag_grid;
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

__device__ __forceinline__ void store_tag(std::uint64_t* tag, Epoch epoch, std::uint32_t value) {
  store_relaxed(tag, protocol::make_tag(epoch, value));
}

}  // namespace moe_ep::cuda
