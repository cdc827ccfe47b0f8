// First part of a combine: what ranks tell each other when they enter the step.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/status.cuh"
#include "cuda/kernels/combine_args.cuh"

namespace moe_ep::cuda {

template <class Body>
__device__ __forceinline__ void for_each_peer(const CombineTables& tables,
                                              const protocol::Workspace& workspace, Body&& body) {
  for (std::int32_t peer = static_cast<std::int32_t>(threadIdx.x);
       peer < workspace.layout.num_ranks; peer += static_cast<std::int32_t>(blockDim.x)) {
    if (peer != workspace.rank && tables.active.test(peer)) body(peer);
  }
}

// Copies of what the block looks up again and again. A barrier must follow.
__device__ __forceinline__ void load_tables(CombineTables& tables, const CombineArgs& args,
                                            Epoch epoch) {
  const protocol::Workspace& workspace = args.params.workspace;
  if (threadIdx.x < kRankMaskWords) {
    tables.active.words[threadIdx.x] = workspace.header()->active.words[threadIdx.x];
  }
  if (threadIdx.x < kMissingWords) tables.placed[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    tables.failed = 0;
    tables.epoch = epoch;
    tables.deadline = clock_ns() + args.params.timeout_ns;
  }
  for (std::int32_t rank = static_cast<std::int32_t>(threadIdx.x);
       rank < workspace.layout.num_ranks; rank += static_cast<std::int32_t>(blockDim.x)) {
    tables.recv_counts[rank] = workspace.recv_counts()[rank];
    tables.send_counts[rank] = workspace.send_counts()[rank];
    tables.landing_in[rank] = -1;
    tables.landing_out[rank] = -1;
  }
  clear_missing(tables.missing, tables.first_bad);
}

// Shares the room behind the combine region out to the peers, first come first served. All blocks
// come to the same result. Ends with a barrier.
__device__ __forceinline__ void share_landing(CombineTables& tables, const CombineArgs& args) {
  const protocol::WorkspaceLayout& layout = args.params.workspace.layout;
  if (threadIdx.x == 0) {
    std::int64_t at = args.landing_begin;
    for (std::int32_t peer = 0; peer < layout.num_ranks; ++peer) {
      if (peer == args.params.workspace.rank) continue;
      const std::int64_t bytes =
          protocol::align_up(tables.send_counts[peer] * args.wire_stride);
      if (at + bytes > layout.slice_bytes / protocol::kAlign * protocol::kAlign) continue;
      tables.landing_in[peer] = at;
      at += bytes;
    }
  }
  __syncthreads();
}

// Tells every active peer that this rank has entered the step. One block; one thread a peer.
__device__ __forceinline__ void announce(const CombineTables& tables, const CombineArgs& args) {
  const protocol::Workspace& workspace = args.params.workspace;
  const Epoch epoch = tables.epoch;
  const std::uint32_t code = protocol::combine_code(args.params.row_bytes, args.params.format) |
                             (args.place ? 0 : protocol::kRowsPlaced);
  for_each_peer(tables, workspace, [&](std::int32_t peer) {
    protocol::PeerLine* line = workspace.line(peer, workspace.rank);
    // Both pair with the peer's loads in await_entries. They release what earlier kernels of this
    // rank did: rows written in place, and the last use of the bytes where rows are to land.
    store_release(tagged_word(&line->combine_flag), tagged(epoch, code));
    if (!args.push) return;
    const std::int64_t landing = tables.landing_in[peer];
    store_release(tagged_word(&line->landing_flag),
                  tagged(epoch, landing < 0 ? protocol::kNoLanding
                                            : static_cast<std::uint32_t>(landing /
                                                                         protocol::kAlign)));
  });
}

// Waits until `word` carries the tag; returns whether it did and what it announces.
__device__ __forceinline__ bool await_tag(DeviceMemory& memory, const CombineTables& tables,
                                          std::uint32_t* flag, std::uint32_t& value) {
  std::uint64_t word = 0;
  const bool arrived = protocol::wait_until(memory, tables.deadline, [&] {
    word = load_acquire(tagged_word(flag));
    return tag_of(word) == tables.epoch;
  });
  value = value_of(word);
  return arrived;
}

// Every block: awaits the peers' entries and checks that they combine alike. False, with the
// failure recorded, if some did not come or differ. Ends with a barrier.
__device__ inline bool await_entries(CombineTables& tables, const CombineArgs& args) {
  const protocol::Workspace& workspace = args.params.workspace;
  const std::uint32_t want = protocol::combine_code(args.params.row_bytes, args.params.format);
  DeviceMemory memory{&workspace.header()->failed};
  std::int32_t bad_peer = -1;
  std::uint32_t bad_code = 0;
  for_each_peer(tables, workspace, [&](std::int32_t peer) {
    protocol::PeerLine* line = workspace.line(workspace.rank, peer);
    std::uint32_t code = 0;
    std::uint32_t landing = protocol::kNoLanding;
    // Pairs with announce, both.
    if (!await_tag(memory, tables, &line->combine_flag, code) ||
        (args.push && (code & ~protocol::kRowsPlaced) == want &&
         !await_tag(memory, tables, &line->landing_flag, landing))) {
      set_missing(tables.missing, peer);
      return;
    }
    if ((code & ~protocol::kRowsPlaced) != want) {
      bad_peer = peer;
      bad_code = code & ~protocol::kRowsPlaced;
      atomicMin(&tables.first_bad, peer);
      return;
    }
    if ((code & protocol::kRowsPlaced) != 0) set_missing(tables.placed, peer);
    if (landing != protocol::kNoLanding) {
      tables.landing_out[peer] = static_cast<std::int64_t>(landing) * protocol::kAlign;
    }
  });
  __syncthreads();
  protocol::StepStatus status;
  if (tables.first_bad != kMaxRanks) {
    if (bad_peer == tables.first_bad) {
      const bool same_size = protocol::combine_code_row_bytes(bad_code) ==
                             protocol::combine_code_row_bytes(want);
      status.result = protocol::StepResult::kMismatch;
      status.phase = Phase::kCombine;
      status.epoch = tables.epoch;
      status.peer = bad_peer;
      status.field = static_cast<std::int32_t>(same_size ? protocol::CombineField::kFormat
                                                         : protocol::CombineField::kRowBytes);
      status.want = same_size ? args.params.format : args.params.row_bytes;
      status.got = same_size ? protocol::combine_code_format(bad_code)
                             : protocol::combine_code_row_bytes(bad_code);
      record_failure(workspace.header(), args.record, status);
    }
    return false;
  }
  if (!any_missing(tables.missing)) return true;
  if (threadIdx.x == 0) {
    record_failure(workspace.header(), args.record,
                   timeout_status(tables.missing, Phase::kCombine, tables.epoch));
  }
  return false;
}

}  // namespace moe_ep::cuda
