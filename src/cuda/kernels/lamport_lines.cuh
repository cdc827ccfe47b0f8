// Block 0 of the Lamport kernels: the line that every rank puts into every peer, and its own
// awaited.
//
// **The release edge.** Landing words are armed again by their reader with plain stores, in an
// earlier kernel of its stream. This kernel's wait_for_producers() orders those stores before the
// fence here, and the fence before the line's tags; a peer acquires the tags in block 0, and its
// later kernels, which write the landing words again, follow the end of this one. The tags and
// words that other blocks send need no order.
//
// A line is put when the kernel starts. In a combine that is before the rank has read its expert
// output, unlike on hosts: peers of a Lamport step never write there, and the next fence dispatch
// asks first (kDrainUntold).
#pragma once

#include "cuda/kernels/lamport_args.cuh"
#include "protocol/combine_check.hpp"

namespace moe_ep::cuda {

struct LamportLines {
  std::int32_t counts[kMaxRanks];  // rows for each rank
  SharedMask missing;
  std::int32_t unlike;  // the lowest peer whose line differs, or kMaxRanks
};

__device__ __forceinline__ void store_tag(std::uint64_t* tag, Epoch epoch, std::uint32_t value) {
  store_relaxed(tag, protocol::make_tag(epoch, value));
}

// Every warp: the peers among `ranks`, shared out to the warps.
template <int Words, class Visit>
__device__ __forceinline__ void for_each_peer_of_warp(const RankBits<Words>& peers, Visit&& visit) {
  std::int32_t turn = 0;
  for_each_rank(peers, [&](std::int32_t peer) {
    if (turn++ % kLamportWarps == warp_id()) visit(peer);
  });
}

// Counts the tokens of this rank that go to each rank. The whole block; a barrier must follow.
template <int Words>
__device__ __forceinline__ void count_visits(LamportLines& lines, const LamportDispatchArgs& args,
                                             const RankBits<Words>& active) {
  const protocol::DispatchParams& params = args.params;
  std::int32_t counts[Words] = {};  // of rank 32 * word + lane
  for (std::int32_t first = warp_id() * kWarp; first < params.num_tokens;
       first += kLamportThreads) {
    const std::int32_t token = first + lane_id();
    const RankBits<Words> ranks =
        ranks_of_token(params, args.ownership, active, token, token < params.num_tokens);
    for_each_ballot(ranks, params.workspace.layout.num_ranks,
                    [&](auto word, std::int32_t bit, std::uint32_t ballot) {
                      if (lane_id() == bit) counts[decltype(word)::value] += __popc(ballot);
                    });
  }
#pragma unroll
  for (int word = 0; word < Words; ++word) {
    if (counts[word] != 0) atomicAdd(&lines.counts[32 * word + lane_id()], counts[word]);
  }
}

// Stamps what no step has written for a long time (protocol::stamp_unused). The whole block.
__device__ inline void stamp_unused_bank(const protocol::Workspace& workspace, Epoch epoch) {
  const protocol::LamportLayout& layout = workspace.layout.lamport;
  const std::int32_t other = (lamport_bank(epoch) + 1) % protocol::kLamportBanks;
  const Epoch stamped = workspace.header()->lamport_stamped[other];
  __syncthreads();  // everybody has seen it
  if (epoch - stamped < protocol::kStampSteps) return;
  const auto fill = [&](std::uint64_t* tags, std::int64_t count) {
    for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x)
      store_tag(tags + i, epoch, 0);
  };
  for (std::int32_t src = 0; src < layout.num_ranks; ++src) {
    fill(protocol::lamport_line(workspace, workspace.rank, other, src),
         protocol::kLamportLineBytes / 8);
    fill(protocol::lamport_tags(workspace, workspace.rank, other, src, 0),
         layout.max_tokens * layout.tag_stride / 8);
    if (threadIdx.x != 0) continue;
    protocol::PeerLine* flags = workspace.line(workspace.rank, src);
    flags->dispatch_flag = epoch;
    flags->combine_flag = epoch;
    flags->landing_flag = epoch;
    flags->done_flag = epoch;
  }
  if (threadIdx.x == 0) workspace.header()->lamport_stamped[other] = epoch;
}

// One warp: awaits peer `peer`'s line and keeps its count, or that it differs.
__device__ __forceinline__ void accept_line(LamportLines& lines, const LamportDispatchArgs& args,
                                            Epoch epoch, std::int32_t peer) {
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::uint64_t* tags =
      protocol::lamport_line(workspace, workspace.rank, lamport_bank(epoch), peer);
  const std::int32_t field = lane_id();
  std::uint64_t tag = 0;
  bool late = false;
  if (field <= protocol::kLineRows) {
    // Pairs with dispatch_lines in the peer.
    late = !wait_until(lamport_patience(args), [&] {
      tag = load_acquire(tags + field);
      return protocol::tag_epoch(tag) == epoch;
    });
  }
  const std::uint32_t got = protocol::tag_value(tag);
  bool unlike = false;
  if (field < protocol::kNumSignatureFields) {
    unlike = static_cast<std::int32_t>(got) != params.signature.fields[field];
  } else if (field == protocol::kLineRows) {
    unlike = got > static_cast<std::uint32_t>(params.tokens_per_rank);
  }
  if (late) lines.missing.set(peer);
  if (!late && unlike) atomicMin(&lines.unlike, peer);
  if (field == protocol::kLineRows) {
    workspace.recv_counts()[peer] = late || unlike ? 0 : static_cast<std::int32_t>(got);
  }
}

// One warp: the failure is what peer `lines.unlike` announced.
__device__ __forceinline__ void record_unlike(const LamportLines& lines,
                                              const LamportDispatchArgs& args, Epoch epoch) {
  const protocol::DispatchParams& params = args.params;
  const std::int32_t field = lane_id();
  const bool is_field = field < protocol::kNumSignatureFields;
  std::uint64_t tag = 0;
  if (field <= protocol::kLineRows) {
    tag = load_relaxed(protocol::lamport_line(params.workspace, params.workspace.rank,
                                              lamport_bank(epoch), lines.unlike) +
                       field);
  }
  const auto got = static_cast<std::int32_t>(protocol::tag_value(tag));
  const std::int32_t want = is_field ? params.signature.fields[field] : params.tokens_per_rank;
  const bool unlike = field <= protocol::kLineRows && protocol::tag_epoch(tag) == epoch &&
                      (is_field ? got != want : got < 0 || got > want);
  const std::uint32_t differs = __ballot_sync(~0u, unlike);  // the first explains most
  if (field != __ffs(static_cast<int>(differs)) - 1) return;
  record_difference(params.workspace.header(), args.record,
                    is_field ? protocol::StepResult::kMismatch : protocol::StepResult::kCorrupt,
                    Phase::kDispatch, epoch, lines.unlike, is_field ? field : -1, want, got);
}

// The whole block: the peers whose lines did not come are the failure, if there are any.
__device__ __forceinline__ void record_missing(const LamportLines& lines,
                                               protocol::SliceHeader* header, FailureRecord* record,
                                               Phase phase, Epoch epoch) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  std::uint64_t any = 0;
#pragma unroll
  for (int word = 0; word < kRankMaskWords; ++word)
    any |= lines.missing.words[word];
  if (any != 0) record_timeout(header, record, phase, epoch, lines.missing);
}

// A block that has seen the state counts itself; the last one to do so keeps the step's. One
// thread, behind a barrier that all loads of the state precede.
__device__ __forceinline__ void begin_step(const LamportDispatchArgs& args, Epoch epoch) {
  protocol::SliceHeader* header = args.params.workspace.header();
  if (count_up(&header->dispatch_arrivals) != gridDim.x - 1) return;
  header->dispatch_arrivals = 0;
  header->epoch = epoch;
  header->drain = 0;  // this step's combine awaits every peer's line, which follows its last reads
  header->active = *args.mask();
}

template <int Words>
__device__ __forceinline__ void dispatch_lines(LamportLines& lines,
                                               const LamportDispatchArgs& args) {
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t me = workspace.rank;
  wait_for_producers();
  const StepState state = StepState::load(workspace.header());
  const RankBits<Words> active = to_bits<Words>(args.mask());
  const Epoch epoch = protocol::next_epoch(state.epoch);
  const std::int32_t bank = lamport_bank(epoch);
  for (std::int32_t rank = static_cast<std::int32_t>(threadIdx.x); rank < kMaxRanks;
       rank += kLamportThreads) {
    lines.counts[rank] = 0;
  }
  if (threadIdx.x < kRankMaskWords) lines.missing.words[threadIdx.x] = 0;
  if (threadIdx.x == 0) lines.unlike = kMaxRanks;
  fence_sys();  // with the stores of tags below, by the same threads, a release
  if (__syncthreads_or(state.failed)) return;
  if (threadIdx.x == 0) begin_step(args, epoch);
  const RankBits<Words> peers = active.without(me);
  for_each_peer_of_warp(peers, [&](std::int32_t peer) {
    std::uint64_t* line = protocol::lamport_line(workspace, peer, bank, me);
    const std::int32_t field = lane_id();
    if (field < protocol::kNumSignatureFields) {
      store_tag(line + field, epoch, static_cast<std::uint32_t>(params.signature.fields[field]));
    }
  });
  count_visits(lines, args, active);
  __syncthreads();
  for_each_peer_of_warp(peers, [&](std::int32_t peer) {
    std::uint64_t* line = protocol::lamport_line(workspace, peer, bank, me);
    if (lane_id() == 0) {
      store_tag(line + protocol::kLineRows, epoch, static_cast<std::uint32_t>(lines.counts[peer]));
    }
  });
  for (std::int32_t rank = static_cast<std::int32_t>(threadIdx.x);
       rank < workspace.layout.num_ranks; rank += kLamportThreads) {
    workspace.send_counts()[rank] = lines.counts[rank];
    if (rank == me || !active.test(rank)) workspace.recv_counts()[rank] = lines.counts[rank];
  }
  stamp_unused_bank(workspace, epoch);
  for_each_peer_of_warp(peers, [&](std::int32_t peer) { accept_line(lines, args, epoch, peer); });
  __syncthreads();
  // A difference explains more than the silence of others.
  if (lines.unlike < kMaxRanks && warp_id() == 0) record_unlike(lines, args, epoch);
  record_missing(lines, workspace.header(), args.record, Phase::kDispatch, epoch);
}

// One warp, a lane a peer: tells what this rank combines and awaits what the peers do.
__device__ __forceinline__ void exchange_combine_tags(LamportLines& lines,
                                                      const LamportCombineArgs& args, Epoch epoch) {
  const protocol::CombineParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t bank = lamport_bank(epoch);
  const std::uint32_t want = protocol::combine_code(params.row_bytes, params.format);
  const auto takes_part = [&](std::int32_t peer) {
    return peer < workspace.layout.num_ranks && peer != workspace.rank &&
           test_rank(&workspace.header()->active, peer);
  };
  for (std::int32_t peer = lane_id(); peer < workspace.layout.num_ranks; peer += kWarp) {
    if (!takes_part(peer)) continue;
    store_tag(
        protocol::lamport_line(workspace, peer, bank, workspace.rank) + protocol::kLineCombine,
        epoch, want);
  }
  for (std::int32_t peer = lane_id(); peer < workspace.layout.num_ranks; peer += kWarp) {
    if (!takes_part(peer)) continue;
    const std::uint64_t* tag =
        protocol::lamport_line(workspace, workspace.rank, bank, peer) + protocol::kLineCombine;
    std::uint64_t got = 0;
    // Pairs with the peer's store above.
    if (!wait_until(lamport_patience(args), [&] {
          got = load_acquire(tag);
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

__device__ __forceinline__ void combine_lines(LamportLines& lines, const LamportCombineArgs& args) {
  protocol::SliceHeader* header = args.params.workspace.header();
  wait_for_producers();
  const StepState state = StepState::load(header);
  if (threadIdx.x < kRankMaskWords) lines.missing.words[threadIdx.x] = 0;
  fence_sys();  // with the stores of tags, by the same threads, a release
  if (__syncthreads_or(state.failed)) return;
  if (threadIdx.x == 0) header->drain = kDrainUntold;
  if (warp_id() == 0) exchange_combine_tags(lines, args, state.epoch);
  record_missing(lines, header, args.record, Phase::kCombine, state.epoch);
}

}  // namespace moe_ep::cuda
