// The edge of a Lamport step, and block 0 of its combine.
//
// **The edge.** Landing words are armed again by their reader with plain stores, and read tags are
// written over two steps later. What orders that: block 1 of a dispatch fences and then raises
// edge_flag; wait_for_producers() orders all that earlier kernels of this stream did before the
// fence. A peer acquires the flag in block 0 of the same step's combine, and its later kernels
// follow the end of that one. So whatever a rank did before dispatch e happens before all that its
// peers do from dispatch e + 1 on; two banks are enough for everything (docs/protocol.md). Nobody
// waits for a fence: it has the whole step to come. Tags and words need no order of their own.
//
// The combine tag is put when the kernel starts. That is before the rank has read its expert
// output, unlike on hosts: peers of a Lamport step never write there, and the next fence dispatch
// asks first (kDrainUntold).
#pragma once

#include "cuda/kernels/lamport_lines.cuh"
#include "protocol/combine_check.hpp"

namespace moe_ep::cuda {

// One warp, a lane a peer: what earlier kernels of this rank did, before the flag.
template <int Words>
__device__ __forceinline__ void raise_edge(const LamportDispatchArgs& args) {
  const protocol::Workspace& workspace = args.params.workspace;
  wait_for_producers();
  const StepState state = StepState::load(workspace.header());
  if (state.failed) return;
  const auto active = args.active<Words>();
  fence_sys();  // with the stores below a release
  for (std::int32_t peer = lane_id(); peer < workspace.layout.num_ranks; peer += kWarp) {
    if (peer == workspace.rank || !active.test(peer)) continue;
    // Pairs with await_edges in the peer.
    store_relaxed(&workspace.line(peer, workspace.rank)->edge_flag,
                  protocol::next_epoch(state.combined));
  }
}

// Whether this rank awaits something of `peer` in this combine.
__device__ __forceinline__ bool combines_with(const protocol::Workspace& workspace,
                                              std::int32_t peer) {
  return peer < workspace.layout.num_ranks && peer != workspace.rank &&
         test_rank(&workspace.header()->active, peer);
}

// One warp, a lane a peer: awaits the edges of the step's dispatch.
__device__ __forceinline__ void await_edges(LamportLines& lines, const LamportCombineArgs& args,
                                            Epoch epoch) {
  const protocol::Workspace& workspace = args.params.workspace;
  for (std::int32_t peer = lane_id(); peer < workspace.layout.num_ranks; peer += kWarp) {
    if (!combines_with(workspace, peer)) continue;
    const std::uint32_t* flag = &workspace.line(workspace.rank, peer)->edge_flag;
    // Pairs with raise_edge in the peer, which may be one step ahead.
    if (!wait_until(lamport_patience(args), [&] { return load_acquire(flag) - epoch < 2u; })) {
      lines.missing.set(peer);
    }
  }
}

// One warp, a lane a peer: tells what this rank combines and awaits what the peers do.
__device__ __forceinline__ void exchange_combine_tags(LamportLines& lines,
                                                      const LamportCombineArgs& args, Epoch epoch) {
  const protocol::CombineParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t bank = lamport_bank(epoch);
  const std::uint32_t want = protocol::combine_code(params.row_bytes, params.format);
  for (std::int32_t peer = lane_id(); peer < workspace.layout.num_ranks; peer += kWarp) {
    if (!combines_with(workspace, peer)) continue;
    store_tag(
        protocol::lamport_line(workspace, peer, bank, workspace.rank) + protocol::kLineCombine,
        epoch, want);
  }
  for (std::int32_t peer = lane_id(); peer < workspace.layout.num_ranks; peer += kWarp) {
    if (!combines_with(workspace, peer)) continue;
    const std::uint64_t* tag =
        protocol::lamport_line(workspace, workspace.rank, bank, peer) + protocol::kLineCombine;
    std::uint64_t got = 0;
    if (!wait_until(lamport_patience(args), [&] {
          got = load_relaxed(tag);
          return protocol::tag_epoch(got) == epoch;
        })) {
      lines.missing.set(peer);
      continue;
    }
    protocol::StepStatus status;
    protocol::check_combine_code(params, peer, protocol::tag_value(got), status);
    if (status.ok()) continue;
    record_difference(workspace.header(), args.record, status.result, Phase::kCombine, epoch, peer,
                      status.field, status.want, status.got);
  }
}

// The whole block.
__device__ __forceinline__ void combine_lines(LamportLines& lines, const LamportCombineArgs& args) {
  protocol::SliceHeader* header = args.params.workspace.header();
  if (threadIdx.x < kRankMaskWords) lines.missing.words[threadIdx.x] = 0;
  __syncthreads();
  wait_for_producers();
  const StepState state = StepState::load(header);
  if (__syncthreads_or(state.failed)) return;
  if (warp_id() == 0) exchange_combine_tags(lines, args, state.epoch);
  if (warp_id() == 1) await_edges(lines, args, state.epoch);
  if (warp_id() == 2 && lane_id() == 0) {
    header->combined = state.epoch;
    header->drain = kDrainUntold;
  }
  record_missing(lines, header, args.record, Phase::kCombine, state.epoch);
}

}  // namespace moe_ep::cuda
