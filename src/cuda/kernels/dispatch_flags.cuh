// Last part of a dispatch: flags, and what the peers have to say.
//
// Every block tells the peers, and its own rank, that what it put is there, so that no block counts
// the others before it speaks for them: the last one by the line, the others by a word each. The
// last block awaits the flags of all ranks, its own rank's among them: so no block is left that has
// yet to read the step's state when it changes that. The last, because the others have started
// then.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/status.cuh"
#include "cuda/kernels/dispatch_await.cuh"

namespace moe_ep::cuda {

// One warp of every block, behind a barrier. The last block says how many rows a peer got: a lane
// knows `rows_for(peer)` of its peers.
template <class TakesPart, class RowsFor>
__device__ __forceinline__ void raise_flags(const DispatchArgs& args, Epoch epoch,
                                            TakesPart&& takes_part, RowsFor&& rows_for, bool live) {
  const protocol::Workspace& workspace = args.params.workspace;
  // With the barrier a release of the block's rows, ids, statistics and signature by the stores
  // below; they pair with await_lines and await_blocks.
  if (live) fence_sys();
  for (std::int32_t peer = lane_id(); peer < workspace.layout.num_ranks; peer += kWarp) {
    if (!takes_part(peer)) continue;
    if (blockIdx.x != gridDim.x - 1) {
      if (live) store_relaxed(workspace.arrivals(peer, workspace.rank) + blockIdx.x, epoch);
      continue;
    }
    protocol::PeerLine* line = workspace.line(peer, workspace.rank);
    const auto rows = static_cast<std::uint32_t>(rows_for(peer));
    if (!live) continue;
    store_relaxed(tagged_word(&line->dispatch_flag), tagged(epoch, rows));
    store_relaxed(tagged_word(&line->blocks_flag), tagged(epoch, gridDim.x));
  }
}

// First field of the own signature that a peer's differs in, or -1.
__device__ __forceinline__ std::int32_t differing_field(const protocol::StepSignature& own,
                                                        const protocol::StepSignature& peer,
                                                        bool live) {
  static_assert(protocol::kNumSignatureFields == 14 && sizeof(protocol::StepSignature) == 56 &&
                offsetof(protocol::PeerLine, signature) % 16 == 0);
  const auto* vectors = reinterpret_cast<const uint4*>(&peer);
  uint4 a{}, b{}, c{};
  uint2 d{};
  if (live) {
    a = __ldcg(vectors);
    b = __ldcg(vectors + 1);
    c = __ldcg(vectors + 2);
    d = __ldcg(reinterpret_cast<const uint2*>(vectors + 3));
  }
  const std::uint32_t fields[] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z,
                                  b.w, c.x, c.y, c.z, c.w, d.x, d.y};
  std::int32_t differs = -1;
#pragma unroll
  for (int field = protocol::kNumSignatureFields - 1; field >= 0; --field) {
    if (fields[field] != static_cast<std::uint32_t>(own.fields[field])) differs = field;
  }
  return live ? differs : -1;
}

// Awaits the peers' lines, checks what they announce and keeps their counts. One warp, a lane a
// peer.
__device__ __forceinline__ void await_lines(const DispatchArgs& args, Epoch epoch,
                                            SharedMask& missing, bool live) {
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const RankMask* mask = live ? args.mask() : &params.active;
  for (std::int32_t first = 0; first < workspace.layout.num_ranks; first += kWarp) {
    const std::int32_t peer = first + lane_id();
    const bool exists = peer < workspace.layout.num_ranks;
    const bool awaited = exists && test_rank(mask, peer);
    protocol::PeerLine* line = workspace.line(workspace.rank, awaited ? peer : workspace.rank);
    std::uint64_t word = 0;
    std::int32_t field = -1;
    bool late = false;
    if (awaited) {
      // Pairs with raise_flags.
      late = live && !wait_until(patience_of(args), [&] {
               word = load_acquire(tagged_word(&line->dispatch_flag));
               return protocol::has_reached(tag_of(word), epoch);
             });
      if (!late) field = differing_field(params.signature, line->signature, live);
    }
    const auto count = static_cast<std::int32_t>(value_of(word));
    const bool corrupt = awaited && !late && (count < 0 || count > params.tokens_per_rank);
    const bool good = awaited && !late && !corrupt && field < 0;
    if (live && exists) workspace.recv_counts()[peer] = good ? count : 0;
    if (late) missing.set(peer);
    // A difference explains more than the silence of others: it is recorded before that.
    const std::uint32_t bad = __ballot_sync(~0u, field >= 0 || corrupt);
    if (bad != 0 && lane_id() == __ffs(static_cast<int>(bad)) - 1) {
      record_difference(
          workspace.header(), args.record,
          field >= 0 ? protocol::StepResult::kMismatch : protocol::StepResult::kCorrupt,
          Phase::kDispatch, epoch, peer, field,
          field >= 0 ? params.signature.fields[field] : params.tokens_per_rank,
          field >= 0 ? line->signature.fields[field] : count);
    }
    if (bad != 0) return;
  }
}

// Awaits the words of all ranks' blocks but the last ones. The other warps, a lane a block.
__device__ __forceinline__ void await_blocks(const DispatchArgs& args, Epoch epoch,
                                             SharedMask& missing, bool live) {
  const protocol::Workspace& workspace = args.params.workspace;
  const RankMask* mask = live ? args.mask() : &args.params.active;
  const std::int32_t num_ranks = workspace.layout.num_ranks;
  // A dispatch has no more blocks than tokens.
  const std::int32_t most = min(args.params.tokens_per_rank, protocol::kArrivals) - 1;
  const std::int32_t num_groups = (most + kWarp - 1) / kWarp * num_ranks;
  for (std::int32_t group = warp_id() - 1; group < num_groups; group += num_warps() - 1) {
    const std::int32_t peer = group % num_ranks;
    const std::int32_t block = group / num_ranks * kWarp + lane_id();
    if (!test_rank(mask, peer)) continue;
    std::uint32_t* flag = workspace.arrivals(workspace.rank, peer) + block;
    std::uint32_t* blocks_flag = &workspace.line(workspace.rank, peer)->blocks_flag;
    // Pairs with raise_flags. How many blocks there are orders nothing.
    const bool late =
        live && !wait_until(patience_of(args), [&] {
          const std::uint64_t blocks = load_relaxed(tagged_word(blocks_flag));
          const std::uint32_t word = load_acquire(flag);
          if (tag_of(blocks) != epoch) return false;
          return word == epoch || static_cast<std::uint32_t>(block) + 1 >= value_of(blocks);
        });
    if (late) missing.set(peer);
    if (__any_sync(~0u, late)) return;
  }
}

// Set by the last block before the barrier in front of raise_flags.
__device__ __forceinline__ void clear_missing() {
  if (threadIdx.x < kRankMaskWords) shared_object<SharedMask>().words[threadIdx.x] = 0;
}

// The last block, all warps: awaits the flags of all ranks and keeps the step's state.
__device__ __forceinline__ void await_flags(const DispatchArgs& args, Epoch epoch, bool live) {
  SharedMask& missing = shared_object<SharedMask>();
  if (warp_id() == 0) {
    await_lines(args, epoch, missing, live);
  } else {
    await_blocks(args, epoch, missing, live);
  }
  __syncthreads();
  if (warp_id() != 0) return;
  protocol::SliceHeader* header = args.params.workspace.header();
  const bool any = lane_id() < kRankMaskWords && missing.words[lane_id() % kRankMaskWords] != 0;
  if (__any_sync(~0u, any) && lane_id() == 0) {
    record_timeout(header, args.record, Phase::kDispatch, epoch, missing);
  }
  // What the next kernels find.
  if (live && lane_id() < kRankMaskWords) {
    header->active.words[lane_id()] = args.mask()->words[lane_id()];
  }
  if (live && lane_id() == 0) {
    header->epoch = epoch;
    header->drain = 0;
  }
}

}  // namespace moe_ep::cuda
