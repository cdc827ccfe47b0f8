// Last part of a dispatch: flags, and what the peers have to say. One warp, a lane a peer.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/status.cuh"
#include "cuda/kernels/dispatch_args.cuh"

namespace moe_ep::cuda {

__device__ __forceinline__ Patience patience_of(const DispatchArgs& args) {
  return {args.params.timeout_ns, &args.params.workspace.header()->failed};
}

// Every warp of every block: waits until all peers of step `last` have read what lies where this
// step's rows will: rows that were pushed to them or, after a Lamport step, their expert output.
// False, with the failure recorded, if some did not.
__device__ inline bool drain_peers(const DispatchArgs& args, Epoch last, std::uint32_t drain) {
  const protocol::Workspace& workspace = args.params.workspace;
  protocol::SliceHeader* header = workspace.header();
  if (drain == kDrainUntold && blockIdx.x == 0 && warp_id() == 0) {
    fence_sys();  // a release of what earlier kernels have read; pairs with the wait below
    for (std::int32_t peer = lane_id(); peer < workspace.layout.num_ranks; peer += kWarp) {
      if (peer == workspace.rank || !test_rank(&header->active, peer)) continue;
      store_relaxed(&workspace.line(peer, workspace.rank)->done_flag, last);
    }
  }
  for (std::int32_t first = 0; first < workspace.layout.num_ranks; first += kWarp) {
    const std::int32_t peer = first + lane_id();
    const bool late =
        peer < workspace.layout.num_ranks && peer != workspace.rank &&
        test_rank(args.mask(), peer) && test_rank(&header->active, peer) &&
        // Pairs with the end of the peer's combine, or its store above.
        !await_flag(patience_of(args), &workspace.line(workspace.rank, peer)->done_flag, last);
    if (!__any_sync(~0u, late)) continue;
    record_late(header, args.record, Phase::kDispatch, protocol::next_epoch(last), peer, late);
    return false;
  }
  return true;
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

// Raises the own flag at every active peer, awaits theirs, checks what they announce and keeps
// their counts and the step's state. One warp that has seen and fenced what all blocks wrote;
// `rows_for(peer)` is what was sent to it.
template <class RowsFor>
__device__ __forceinline__ void exchange_flags(const DispatchArgs& args, Epoch epoch,
                                               RowsFor&& rows_for, bool live) {
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t num_ranks = workspace.layout.num_ranks;
  const RankMask* mask = live ? args.mask() : &params.active;
  protocol::SliceHeader* header = workspace.header();
  for (std::int32_t peer = lane_id(); peer < num_ranks; peer += kWarp) {
    // With the fences of arrive_last a release of rows, ids, statistics and signature; pairs with
    // the peer's load below.
    std::uint64_t* flag = tagged_word(&workspace.line(peer, workspace.rank)->dispatch_flag);
    const std::uint64_t word = tagged(epoch, static_cast<std::uint32_t>(rows_for(peer)));
    if (test_rank(mask, peer) && live) store_relaxed(flag, word);
  }
  RankMask missing;
  bool any_late = false;
  for (std::int32_t first = 0; first < num_ranks; first += kWarp) {
    const std::int32_t peer = first + lane_id();
    const bool awaited = peer < num_ranks && test_rank(mask, peer);
    protocol::PeerLine* line = workspace.line(workspace.rank, awaited ? peer : workspace.rank);
    std::uint64_t word = 0;
    std::int32_t field = -1;
    bool late = false;
    if (awaited) {
      // Pairs with the peer's store above.
      late = live && !wait_until(patience_of(args), [&] {
               word = load_acquire(tagged_word(&line->dispatch_flag));
               return protocol::has_reached(tag_of(word), epoch);
             });
      if (!late) field = differing_field(params.signature, line->signature, live);
    }
    const auto count = static_cast<std::int32_t>(value_of(word));
    const bool corrupt = awaited && !late && (count < 0 || count > params.tokens_per_rank);
    const bool good = awaited && !late && !corrupt && field < 0;
    if (live && peer < num_ranks) workspace.recv_counts()[peer] = good ? count : 0;
    // A difference explains more than the silence of others: it wins over a timeout.
    const std::uint32_t bad = __ballot_sync(~0u, field >= 0 || corrupt);
    if (bad != 0) {
      if (lane_id() == __ffs(static_cast<int>(bad)) - 1) {
        record_difference(
            header, args.record,
            field >= 0 ? protocol::StepResult::kMismatch : protocol::StepResult::kCorrupt,
            Phase::kDispatch, epoch, peer, field,
            field >= 0 ? params.signature.fields[field] : params.tokens_per_rank,
            field >= 0 ? line->signature.fields[field] : count);
      }
      any_late = false;
      break;
    }
    if (!__any_sync(~0u, late)) continue;
    any_late = true;
    add_late(missing, peer, late);
  }
  if (any_late && lane_id() == 0) {
    record_timeout(header, args.record, Phase::kDispatch, epoch, missing);
  }
  // What the next kernels find.
  if (live && lane_id() < kRankMaskWords) header->active.words[lane_id()] = mask->words[lane_id()];
  if (live && lane_id() == 0) {
    header->epoch = epoch;
    header->drain = 0;
    header->dispatch_arrivals = 0;
  }
}

}  // namespace moe_ep::cuda
