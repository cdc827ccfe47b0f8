// Last part of a dispatch: flags, and what the peers have to say. A warp a peer.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/status.cuh"
#include "cuda/kernels/dispatch_args.cuh"

namespace moe_ep::cuda {

// Blocks until every peer of step `last` has read the rows that were pushed to it. True if so. The
// step's mask is in `active`, behind a barrier.
__device__ inline bool drain_peers(AwaitTables& tables, const DispatchArgs& args, Epoch last) {
  const protocol::Workspace& workspace = args.params.workspace;
  DeviceMemory memory{&workspace.header()->failed};
  tables.outcome.clear();
  __syncthreads();
  const std::uint64_t deadline = clock_ns() + args.params.timeout_ns;
  for (std::int32_t peer = static_cast<std::int32_t>(threadIdx.x);
       peer < workspace.layout.num_ranks; peer += static_cast<std::int32_t>(blockDim.x)) {
    if (peer == workspace.rank || !tables.active.test(peer) ||
        !test_rank(&workspace.header()->active, peer)) {
      continue;
    }
    const std::uint32_t* flag = &workspace.line(workspace.rank, peer)->done_flag;
    // Pairs with the end of the peer's combine.
    if (!protocol::wait_until(memory, deadline, [&] { return load_acquire(flag) == last; })) {
      tables.outcome.missing.set(peer);
    }
  }
  __syncthreads();
  if (tables.outcome.missing.empty()) return true;
  if (threadIdx.x == 0) {
    record_timeout(workspace.header(), args.record, Phase::kDispatch, protocol::next_epoch(last),
                   tables.outcome.missing);
  }
  return false;
}

// What a warp finds in the line of one peer. Uniform in the warp.
struct Arrival {
  bool missing = false;
  std::int32_t field = -1;  // of the signature, that differs
  std::int32_t want = 0;
  std::int32_t got = 0;
  std::int32_t count = 0;  // rows; may be out of bounds
};

__device__ __forceinline__ Arrival await_arrival(const protocol::DispatchParams& params,
                                                 std::int32_t peer, Epoch epoch,
                                                 std::uint64_t deadline) {
  static_assert(protocol::kNumSignatureFields <= kWarp);
  const protocol::Workspace& workspace = params.workspace;
  protocol::PeerLine* line = workspace.line(workspace.rank, peer);
  DeviceMemory memory{&workspace.header()->failed};
  std::uint64_t word = 0;
  bool arrived = true;
  if (lane_id() == 0) {
    // Pairs with raise_flags.
    arrived = protocol::wait_until(memory, deadline, [&] {
      word = load_acquire(tagged_word(&line->dispatch_flag));
      return protocol::has_reached(tag_of(word), epoch);
    });
  }
  __syncwarp();  // all lanes see what the flag announced
  const bool has_field = lane_id() < protocol::kNumSignatureFields;
  const std::int32_t want = has_field ? params.signature.fields[lane_id()] : 0;
  const std::int32_t got = has_field ? __ldcg(&line->signature.fields[lane_id()]) : 0;
  const std::uint32_t differ = __ballot_sync(~0u, want != got);
  Arrival arrival;
  arrival.missing = !__shfl_sync(~0u, static_cast<int>(arrived), 0);
  arrival.count = __shfl_sync(~0u, static_cast<std::int32_t>(value_of(word)), 0);
  if (differ != 0) {
    arrival.field = __ffs(static_cast<int>(differ)) - 1;
    arrival.want = __shfl_sync(~0u, want, arrival.field);
    arrival.got = __shfl_sync(~0u, got, arrival.field);
  }
  return arrival;
}

// Raises the own flag at every active peer, awaits theirs, checks what they announce and keeps
// their counts. The whole block, which has seen what all blocks of the grid wrote. `rows_for(peer)`
// is what was sent to it.
template <class RowsFor>
__device__ __forceinline__ void exchange_flags(AwaitTables& tables, const DispatchArgs& args,
                                               Epoch epoch, RowsFor&& rows_for) {
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t num_ranks = workspace.layout.num_ranks;
  for (std::int32_t peer = warp_id(); peer < num_ranks; peer += num_warps()) {
    const std::int32_t rows = rows_for(peer);
    if (lane_id() == 0 && tables.active.test(peer)) {
      // Pairs with await_arrival: rows, ids, statistics and signature before.
      store_release(tagged_word(&workspace.line(peer, workspace.rank)->dispatch_flag),
                    tagged(epoch, static_cast<std::uint32_t>(rows)));
    }
  }
  tables.outcome.clear();
  __syncthreads();
  const std::uint64_t deadline = clock_ns() + params.timeout_ns;
  std::int32_t bad_peer = kMaxRanks;
  Arrival bad;
  bool failed = false;
  for (std::int32_t peer = warp_id(); peer < num_ranks; peer += num_warps()) {
    std::int32_t count = 0;
    if (tables.active.test(peer)) {
      const Arrival arrival = await_arrival(params, peer, epoch, deadline);
      const bool corrupt = arrival.count < 0 || arrival.count > params.tokens_per_rank;
      if (arrival.missing) {
        failed = true;
        if (lane_id() == 0) tables.outcome.missing.set(peer);
      } else if (arrival.field >= 0 || corrupt) {
        failed = true;
        if (bad_peer == kMaxRanks) {
          bad_peer = peer;
          bad = arrival;
        }
        if (lane_id() == 0) atomicMin(&tables.outcome.first_bad, peer);
      } else {
        count = arrival.count;
      }
    }
    if (lane_id() == 0) workspace.recv_counts()[peer] = count;
  }
  if (!__syncthreads_or(failed)) return;
  // A difference explains more than the silence of others: it wins over a timeout.
  if (tables.outcome.first_bad != kMaxRanks) {
    if (bad_peer != tables.outcome.first_bad || lane_id() != 0) return;
    if (bad.field >= 0) {
      record_difference(workspace.header(), args.record, protocol::StepResult::kMismatch,
                        Phase::kDispatch, epoch, bad_peer, bad.field, bad.want, bad.got);
    } else {
      record_difference(workspace.header(), args.record, protocol::StepResult::kCorrupt,
                        Phase::kDispatch, epoch, bad_peer, -1, params.tokens_per_rank, bad.count);
    }
  } else if (threadIdx.x == 0) {
    record_timeout(workspace.header(), args.record, Phase::kDispatch, epoch,
                   tables.outcome.missing);
  }
}

// One thread: what the next kernels find in the own slice.
__device__ __forceinline__ void keep_state(const AwaitTables& tables, protocol::SliceHeader* header,
                                           Epoch epoch) {
  if (threadIdx.x < kRankMaskWords) {
    header->active.words[threadIdx.x] = tables.active.words[threadIdx.x];
  }
  if (threadIdx.x != 0) return;
  header->epoch = epoch;
  header->drain = 0;
  header->dispatch_arrivals = 0;
}

}  // namespace moe_ep::cuda
