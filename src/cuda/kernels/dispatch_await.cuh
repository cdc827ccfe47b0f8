// Last part of a dispatch: flags, and what the peers have to say.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/status.cuh"
#include "cuda/kernels/dispatch_args.cuh"

namespace moe_ep::cuda {

// Blocks until every peer of step `last` has read the rows that were pushed to it. True if so.
__device__ inline bool drain_peers(RouteTables& tables, const protocol::DispatchParams& params,
                                   Epoch last, FailureRecord* record) {
  const protocol::Workspace& workspace = params.workspace;
  DeviceMemory memory{&workspace.header()->failed};
  if (threadIdx.x < kRankMaskWords) {
    tables.awaited.words[threadIdx.x] =
        tables.active.words[threadIdx.x] & workspace.header()->active.words[threadIdx.x];
  }
  clear_missing(tables.missing, tables.first_bad);
  __syncthreads();
  for (std::int32_t peer = static_cast<std::int32_t>(threadIdx.x);
       peer < workspace.layout.num_ranks; peer += static_cast<std::int32_t>(blockDim.x)) {
    if (peer == workspace.rank || !tables.awaited.test(peer)) continue;
    const std::uint32_t* flag = &workspace.line(workspace.rank, peer)->done_flag;
    // Pairs with the end of the peer's combine.
    if (!protocol::wait_until(memory, clock_ns() + params.timeout_ns,
                              [&] { return load_acquire(flag) == last; })) {
      set_missing(tables.missing, peer);
      atomicMin(&tables.first_bad, peer);
    }
  }
  __syncthreads();
  if (tables.first_bad == kMaxRanks) return true;
  if (threadIdx.x == 0) {
    record_failure(workspace.header(), record,
                   timeout_status(tables.missing, Phase::kDispatch, protocol::next_epoch(last)));
  }
  return false;
}

// One thread a peer, in the last block: raises the own flag there.
__device__ __forceinline__ void raise_flags(const RouteTables& tables,
                                            const protocol::DispatchParams& params, Epoch epoch) {
  const protocol::Workspace& workspace = params.workspace;
  for (std::int32_t peer = static_cast<std::int32_t>(threadIdx.x);
       peer < workspace.layout.num_ranks; peer += static_cast<std::int32_t>(blockDim.x)) {
    if (!tables.active.test(peer)) continue;
    const std::int32_t rows =
        gridDim.x == 1 ? tables.next_row[peer] : __ldcg(workspace.send_counts() + peer);
    // Pairs with the peer's load in accept_peers: rows, ids, statistics and signature before.
    store_release(tagged_word(&workspace.line(peer, workspace.rank)->dispatch_flag),
                  tagged(epoch, static_cast<std::uint32_t>(rows)));
  }
}

// One thread a peer: awaits its flag, checks its signature, keeps its count.
__device__ inline void accept_peers(RouteTables& tables, const protocol::DispatchParams& params,
                                    Epoch epoch, FailureRecord* record) {
  const protocol::Workspace& workspace = params.workspace;
  DeviceMemory memory{&workspace.header()->failed};
  clear_missing(tables.missing, tables.first_bad);
  __syncthreads();
  const std::uint64_t deadline = clock_ns() + params.timeout_ns;
  protocol::StepStatus bad;
  bad.phase = Phase::kDispatch;
  bad.epoch = epoch;
  for (std::int32_t peer = static_cast<std::int32_t>(threadIdx.x);
       peer < workspace.layout.num_ranks; peer += static_cast<std::int32_t>(blockDim.x)) {
    std::int32_t count = 0;
    if (tables.active.test(peer)) {
      protocol::PeerLine* line = workspace.line(workspace.rank, peer);
      std::uint64_t word = 0;
      // Pairs with raise_flags.
      if (protocol::wait_until(memory, deadline, [&] {
            word = load_acquire(tagged_word(&line->dispatch_flag));
            return protocol::has_reached(tag_of(word), epoch);
          })) {
        count = static_cast<std::int32_t>(value_of(word));
        const std::int32_t field = params.signature.first_difference(line->signature);
        const bool corrupt = count < 0 || count > params.tokens_per_rank;
        if (field >= 0 || corrupt) {
          bad.result = field >= 0 ? protocol::StepResult::kMismatch : protocol::StepResult::kCorrupt;
          bad.peer = peer;
          bad.field = field;
          bad.want = field >= 0 ? params.signature.fields[field] : params.tokens_per_rank;
          bad.got = field >= 0 ? line->signature.fields[field] : count;
          count = 0;
          atomicMin(&tables.first_bad, peer);
        }
      } else {
        set_missing(tables.missing, peer);
      }
    }
    workspace.recv_counts()[peer] = count;
  }
  __syncthreads();
  // A difference explains more than the silence of others: it wins over a timeout.
  if (tables.first_bad != kMaxRanks) {
    if (bad.peer == tables.first_bad) record_failure(workspace.header(), record, bad);
    return;
  }
  if (threadIdx.x == 0 && any_missing(tables.missing)) {
    record_failure(workspace.header(), record,
                   timeout_status(tables.missing, Phase::kDispatch, epoch));
  }
}

}  // namespace moe_ep::cuda
