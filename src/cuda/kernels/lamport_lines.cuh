// Block 0 of a Lamport dispatch: the signature that every rank puts into every peer, and theirs
// awaited; how many rows come; the age of tags.
#pragma once

#include "cuda/kernels/lamport_args.cuh"

namespace moe_ep::cuda {

struct LamportLines {
  std::int32_t counts[kMaxRanks];  // rows that come from each rank
  SharedMask missing;
};

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
    // This step is not over: the next fence dispatch waits until the peer says that it is.
    flags->done_flag = epoch - 1;
    flags->blocks_flag = epoch;
  }
  if (threadIdx.x == 0) workspace.header()->lamport_stamped[other] = epoch;
}

// One warp: puts the own signature into every peer.
template <int Words>
__device__ __forceinline__ void put_signature(const LamportDispatchArgs& args,
                                              const RankBits<Words>& peers, Epoch epoch) {
  const protocol::Workspace& workspace = args.params.workspace;
  const std::int32_t field = lane_id();
  const bool sends = field < protocol::kNumSignatureFields;
  const auto value = static_cast<std::uint32_t>(sends ? args.params.signature.fields[field] : 0);
  for_each_rank(peers, [&](std::int32_t peer) {
    std::uint64_t* line =
        protocol::lamport_line(workspace, peer, lamport_bank(epoch), workspace.rank);
    if (sends) store_tag(line + field, epoch, value);
  });
}

// One warp: awaits every peer's signature and compares it. The lowest peer that differs is the
// failure: that explains more than the silence of others.
template <int Words>
__device__ __forceinline__ void accept_signatures(LamportLines& lines,
                                                  const LamportDispatchArgs& args,
                                                  const RankBits<Words>& peers, Epoch epoch) {
  const protocol::Workspace& workspace = args.params.workspace;
  const std::int32_t field = lane_id();
  const bool compares = field < protocol::kNumSignatureFields;
  const std::int32_t want = compares ? args.params.signature.fields[field] : 0;
  bool told = false;
  for_each_rank(peers, [&](std::int32_t peer) {
    const std::uint64_t* tag =
        protocol::lamport_line(workspace, workspace.rank, lamport_bank(epoch), peer) + field;
    std::uint64_t word = 0;
    const bool arrived = !compares || wait_until(lamport_patience(args), [&] {
      word = load_relaxed(tag);
      return protocol::tag_epoch(word) == epoch;
    });
    if (!arrived) lines.missing.set(peer);
    const auto got = static_cast<std::int32_t>(protocol::tag_value(word));
    const std::uint32_t differs = __ballot_sync(~0u, compares && arrived && got != want);
    if (differs == 0 || told) return;
    told = true;
    if (field != __ffs(static_cast<int>(differs)) - 1) return;  // the first explains most
    record_difference(workspace.header(), args.record, protocol::StepResult::kMismatch,
                      Phase::kDispatch, epoch, peer, field, want, got);
  });
}

// All warps but the first: counts the tokens of every rank that come here by their first tags,
// those of the own rank too (keep_tags).
template <int Words>
__device__ __forceinline__ void count_rows(LamportLines& lines, const LamportDispatchArgs& args,
                                           const RankBits<Words>& active, Epoch epoch) {
  const protocol::Workspace& workspace = args.params.workspace;
  const std::int32_t tokens = args.params.tokens_per_rank;
  const std::int32_t total = workspace.layout.num_ranks * tokens;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x) - kWarp; i < total;
       i += kLamportThreads - kWarp) {
    const std::int32_t src = args.tokens(i);
    if (!active.test(src)) continue;
    const std::uint64_t* tag = args.token_tags(workspace.rank, src, i - src * tokens, epoch);
    std::uint64_t word = 0;
    if (!wait_until(lamport_patience(args), [&] {
          word = load_relaxed(tag);
          return protocol::tag_epoch(word) == epoch;
        })) {
      lines.missing.set(src);
      break;
    }
    if (protocol::tag_value(word) != protocol::kNotHere) atomicAdd(&lines.counts[src], 1);
  }
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

// The whole block.
template <int Words>
__device__ __forceinline__ void dispatch_lines(LamportLines& lines,
                                               const LamportDispatchArgs& args) {
  const protocol::Workspace& workspace = args.params.workspace;
  protocol::SliceHeader* header = workspace.header();
  for (std::int32_t rank = static_cast<std::int32_t>(threadIdx.x); rank < kMaxRanks;
       rank += kLamportThreads) {
    lines.counts[rank] = 0;
  }
  if (threadIdx.x < kRankMaskWords) lines.missing.words[threadIdx.x] = 0;
  __syncthreads();
  wait_for_producers();
  const StepState state = StepState::load(header);
  const auto active = args.active<Words>();
  if (__syncthreads_or(state.failed)) return;
  const Epoch epoch = protocol::next_epoch(state.combined);
  if (warp_id() == 0) {
    const RankBits<Words> peers = active.without(workspace.rank);
    put_signature(args, peers, epoch);
    if (lane_id() < kRankMaskWords) {
      header->active.words[lane_id()] = args.default_mask != nullptr
                                            ? args.default_mask->words[lane_id()]
                                            : args.params.active.words[lane_id()];
    }
    if (lane_id() == 0) {
      header->epoch = epoch;
      // This step's combine awaits every peer's tag, which follows its last reads.
      header->drain = 0;
    }
    accept_signatures(lines, args, peers, epoch);
  } else {
    count_rows(lines, args, active, epoch);
  }
  record_missing(lines, header, args.record, Phase::kDispatch, epoch);
  for (std::int32_t rank = static_cast<std::int32_t>(threadIdx.x);
       rank < workspace.layout.num_ranks; rank += kLamportThreads) {
    workspace.recv_counts()[rank] = lines.counts[rank];
  }
  stamp_unused_bank(workspace, epoch);
}

}  // namespace moe_ep::cuda
