// The Lamport dispatch kernel (lamport.hpp). Blocks from 1 on: each sends its pieces of this rank's
// tokens to the peers they visit, and takes the same pieces of the peers' tokens.
//
// A block sends its next piece before it waits for the last one's counterparts, so a rank sends a
// unit at the latest after it has taken an earlier one: by induction over a rank's units nobody
// waits for ever while all blocks are resident (launch.hpp).
#pragma once

#include "cuda/device/shared.cuh"
#include "cuda/kernels/lamport_lines.cuh"

namespace moe_ep::cuda {

// A lane's two ids of a token; -1: none.
struct LaneIds {
  std::int64_t low;   // number lane
  std::int64_t high;  // number 32 + lane

  static __device__ __forceinline__ LaneIds load(const protocol::DispatchParams& params,
                                                 std::int32_t token) {
    static_assert(kMaxTopK <= 2 * kWarp);
    const protocol::IdRow ids = params.ids(token);
    const bool exists = token < params.num_tokens;
    return {exists && lane_id() < params.top_k ? ids[lane_id()] : -1,
            exists && lane_id() + kWarp < params.top_k ? ids[lane_id() + kWarp] : -1};
  }

  // The active ranks that the token visits. The whole warp.
  template <int Words>
  __device__ __forceinline__ RankBits<Words> visits(const FastOwnership& ownership,
                                                    const RankBits<Words>& active) const {
    RankBits<Words> ranks;
    for (const std::int64_t id : {low, high}) {
      if (!ownership.is_void(id)) ranks.set(ownership.owner(static_cast<std::int32_t>(id)));
    }
#pragma unroll
    for (int word = 0; word < Words; ++word) {
      ranks.words[word] = __reduce_or_sync(~0u, ranks.words[word]) & active.words[word];
    }
    return ranks;
  }
};

// A block's piece of a row of this rank, on its way out.
template <bool kWide, int Vectors>
struct LamportPiece {
  LaneWords<kWide> held[Vectors];

  __device__ __forceinline__ void load(const LamportDispatchArgs& args, const LamportUnit& unit) {
    const protocol::Payload& from = args.params.payloads[0];
    const LamportShape& shape = args.shape;
    if (unit.token >= args.params.num_tokens) return;
    const std::byte* row = from.rows + unit.token * from.stride;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const std::uint32_t at = unit.at<kWide>(v);
      if (at < shape.row_bytes) held[v].load_row(row + at, shape.row_bytes - at, shape.width);
    }
  }

  template <int Words>
  __device__ __forceinline__ void send(const LamportDispatchArgs& args, const LamportUnit& unit,
                                       std::int32_t bank, const RankBits<Words>& ranks) const {
    const protocol::Workspace& workspace = args.params.workspace;
    const protocol::LamportLayout& layout = workspace.layout.lamport;
    const std::int32_t me = workspace.rank;
    const std::int64_t landing = layout.row(bank, me, unit.token);
    for_each_rank(ranks.without(me), [&](std::int32_t peer) {
      std::byte* to = workspace.slice(peer) + landing;
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        const std::uint32_t at = unit.at<kWide>(v);
        if (at < args.shape.row_bytes) held[v].sendable(layout.words).send(to + at);
      }
    });
    if (!ranks.test(me)) return;
    std::byte* to = args.params.row(me, 0, me, unit.token);
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const std::uint32_t at = unit.at<kWide>(v);
      if (at < args.shape.row_bytes) {
        held[v].store_row(to + at, args.shape.row_bytes - at, args.shape.width);
      }
    }
  }
};

// Where tag `tag` of a row belongs: a word of a payload behind the ids.
struct TagSpot {
  std::int32_t payload;
  std::uint32_t offset;
  std::uint32_t bytes;

  static __device__ __forceinline__ TagSpot of(const protocol::DispatchParams& params,
                                               std::int32_t tag) {
    auto word = static_cast<std::int64_t>(tag) - params.top_k;
    std::int32_t payload = 2;
    while (word >= protocol::LamportLayout::num_tags(params.row_bytes(payload))) {
      word -= protocol::LamportLayout::num_tags(params.row_bytes(payload));
      ++payload;
    }
    const std::int64_t left = params.row_bytes(payload) - 4 * word;
    return {payload, static_cast<std::uint32_t>(4 * word),
            static_cast<std::uint32_t>(left < 4 ? left : 4)};
  }
  __device__ __forceinline__ std::uint32_t load(const protocol::DispatchParams& params,
                                                std::int32_t token) const {
    const std::byte* from =
        params.payloads[payload].rows + token * params.payloads[payload].stride + offset;
    return load_word(from, bytes, row_width(reinterpret_cast<std::uint64_t>(from)) < 4 ? 1 : 4);
  }
  __device__ __forceinline__ void store(const protocol::DispatchParams& params, std::int32_t src,
                                        std::int32_t token, std::uint32_t value) const {
    std::byte* to = params.row(params.workspace.rank, payload, src, token) + offset;
    store_word(to, value, bytes, row_width(reinterpret_cast<std::uint64_t>(to)) < 4 ? 1 : 4);
  }
};

// Tags of a token for every active peer; peers and groups of 32 tags are shared out to the warps.
template <int Words>
__device__ __forceinline__ void send_tags(const LamportDispatchArgs& args, std::int32_t token,
                                          const LaneIds& ids, const RankBits<Words>& peers,
                                          const RankBits<Words>& ranks, std::int32_t bank,
                                          Epoch epoch) {
  const protocol::DispatchParams& params = args.params;
  std::int32_t turn = 0;
  for_each_rank(peers, [&](std::int32_t peer) {
    std::uint64_t* tags =
        protocol::lamport_tags(params.workspace, peer, bank, params.workspace.rank, token);
    const bool comes = ranks.test(peer);
    const std::int32_t count = comes ? args.num_tags : 1;
    for (std::int32_t first = 0; first < count; first += kWarp) {
      const std::int32_t tag = first + lane_id();
      if (turn++ % kLamportWarps != warp_id() || tag >= count) continue;
      std::uint32_t value = protocol::kNotHere;
      if (comes && tag >= params.top_k) {
        value = TagSpot::of(params, tag).load(params, token);
      } else if (comes) {
        const std::int64_t id = first == 0 ? ids.low : ids.high;
        value = args.ownership.is_void(id) ? protocol::kVoidId : static_cast<std::uint32_t>(id);
      }
      store_tag(tags + tag, epoch, value);
    }
  });
}

// What stays of a token with the own rank, but for its row of payload 0: one warp.
template <int Words>
__device__ __forceinline__ void keep_tags(const LamportDispatchArgs& args, std::int32_t token,
                                          const LaneIds& ids, const RankBits<Words>& ranks) {
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t me = workspace.rank;
  const bool comes = ranks.test(me);
  auto* kept = reinterpret_cast<std::int32_t*>(params.row(me, params.ids_payload, me, token));
  const auto keep_id = [&](std::int32_t k, std::int64_t id) {
    if (k >= params.top_k) return;
    kept[k] = !comes || args.ownership.is_void(id) ? params.invalid_expert_id
                                                   : static_cast<std::int32_t>(id);
  };
  keep_id(lane_id(), ids.low);
  keep_id(lane_id() + kWarp, ids.high);
  for (std::int32_t tag = params.top_k + lane_id(); comes && tag < args.num_tags; tag += kWarp) {
    const TagSpot spot = TagSpot::of(params, tag);
    spot.store(params, me, token, spot.load(params, token));
  }
  if (token >= params.num_tokens) return;
  protocol::Hop* hops = workspace.hops(token);
  std::int32_t count = 0;
#pragma unroll
  for (int word = 0; word < Words; ++word) {
    const std::uint32_t bits = ranks.words[word];
    if ((bits >> lane_id() & 1) != 0) {
      hops[count + __popc(bits & ((1u << lane_id()) - 1))] = {32 * word + lane_id(), token};
    }
    count += __popc(bits);
  }
  if (lane_id() == 0 && count < workspace.layout.hops_per_token()) hops[count] = {-1, 0};
}

// A wait for a row of `token` ran out: names every peer that has not even sent its tag, and `peer`.
template <int Words>
__device__ __attribute__((noinline)) void record_late_rows(const LamportDispatchArgs& args,
                                                           RankBits<Words> peers, Epoch epoch,
                                                           std::int32_t token, std::int32_t peer) {
  const protocol::Workspace& workspace = args.params.workspace;
  RankMask missing;
  if (peer >= 0) missing.set(peer);
  for (std::int32_t src = peers.take_lowest(); src >= 0; src = peers.take_lowest()) {
    const std::uint64_t tag = load_relaxed(
        protocol::lamport_tags(workspace, workspace.rank, lamport_bank(epoch), src, token));
    if (protocol::tag_epoch(tag) != epoch) missing.set(src);
  }
  record_timeout(workspace.header(), args.record, Phase::kDispatch, epoch, missing);
}

// Takes the unit's piece of every peer's token. False, with the failure recorded, if some lane's
// words did not come.
template <int Words, bool kWide, int Vectors>
__device__ __forceinline__ bool take_pieces(const LamportDispatchArgs& args,
                                            const LamportUnit& unit, const RankBits<Words>& peers,
                                            std::int32_t bank, Epoch epoch) {
  constexpr int kBatch =
      Vectors == 1 ? 2 : 1;  // peers polled side by side: registers allow no more
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const protocol::LamportLayout& layout = workspace.layout.lamport;
  const LamportShape& shape = args.shape;
  const std::int32_t me = workspace.rank;
  const std::uint32_t sentinel = protocol::sentinel_of(layout.words);
  RankBits<Words> left = peers;
  for (;;) {
    std::int32_t src[kBatch];
    std::uint32_t pending = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      src[b] = left.take_lowest();
      if (src[b] >= 0) pending |= 1u << b;
    }
    if (pending == 0) return true;
    const bool arrived = wait_until(lamport_patience(args), [&] {
      std::uint64_t tag[kBatch];
      LaneWords<kWide> words[kBatch][Vectors];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if ((pending >> b & 1) == 0) continue;
        tag[b] = load_relaxed(protocol::lamport_tags(workspace, me, bank, src[b], unit.token));
        const std::byte* from = workspace.own() + layout.row(bank, src[b], unit.token);
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
          const std::uint32_t at = unit.at<kWide>(v);
          if (at < shape.row_bytes) words[b][v].poll(from + at);
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if ((pending >> b & 1) == 0 || protocol::tag_epoch(tag[b]) != epoch) continue;
        if (protocol::tag_value(tag[b]) != protocol::kNotHere) {
          bool complete = true;
#pragma unroll
          for (int v = 0; v < Vectors; ++v) {
            complete =
                complete && (unit.at<kWide>(v) >= shape.row_bytes || words[b][v].arrived(sentinel));
          }
          if (!complete) continue;
          std::byte* landing = workspace.own() + layout.row(bank, src[b], unit.token);
          std::byte* to = params.row(me, 0, src[b], unit.token);
#pragma unroll
          for (int v = 0; v < Vectors; ++v) {
            const std::uint32_t at = unit.at<kWide>(v);
            if (at >= shape.row_bytes) continue;
            words[b][v].store_row(to + at, shape.row_bytes - at, shape.width);
            LaneWords<kWide>::arm(landing + at, sentinel);
          }
        }
        pending &= ~(1u << b);
      }
      return pending == 0;
    });
    if (!arrived) {
      std::int32_t late = -1;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if ((pending >> b & 1) != 0) late = src[b];
      }
      record_late_rows(args, peers, epoch, unit.token, late);
    }
    if (!__all_sync(~0u, arrived)) return false;
  }
}

// Takes the tags of every rank's token: ids and what else travels as tags. Ranks are shared out to
// the warps. False, with the failure recorded, if some did not come.
template <int Words>
__device__ __forceinline__ bool take_tags(const LamportDispatchArgs& args, std::int32_t token,
                                          const RankBits<Words>& peers, std::int32_t bank,
                                          Epoch epoch) {
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t me = workspace.rank;
  for (std::int32_t src = warp_id(); src < workspace.layout.num_ranks; src += kLamportWarps) {
    if (src == me) continue;
    auto* ids = reinterpret_cast<std::int32_t*>(params.row(me, params.ids_payload, src, token));
    const std::uint64_t* tags = protocol::lamport_tags(workspace, me, bank, src, token);
    bool comes = peers.test(src);
    for (std::int32_t first = 0; comes && first < args.num_tags; first += kWarp) {
      const std::int32_t tag = first + lane_id();
      std::uint64_t word = 0;
      const bool arrived = wait_until(lamport_patience(args), [&] {
        const std::uint64_t head = load_relaxed(tags);
        if (tag < args.num_tags) word = load_relaxed(tags + tag);
        comes = protocol::tag_value(head) != protocol::kNotHere;
        return protocol::tag_epoch(head) == epoch &&
               (!comes || tag >= args.num_tags || protocol::tag_epoch(word) == epoch);
      });
      if (!arrived) record_late_rows(args, peers, epoch, token, src);
      if (!__all_sync(~0u, arrived)) return false;
      if (!comes || tag >= args.num_tags) continue;
      const std::uint32_t value = protocol::tag_value(word);
      if (tag < params.top_k) {
        ids[tag] = value == protocol::kVoidId ? params.invalid_expert_id
                                              : static_cast<std::int32_t>(value);
      } else {
        TagSpot::of(params, tag).store(params, src, token, value);
      }
    }
    for (std::int32_t k = lane_id(); !comes && k < params.top_k; k += kWarp)
      ids[k] = params.invalid_expert_id;
  }
  return true;
}

template <int Words, bool kWide, int Vectors>
__device__ __forceinline__ void dispatch_rows(const LamportDispatchArgs& args) {
  const protocol::Workspace& workspace = args.params.workspace;
  const auto stride = static_cast<std::int32_t>(gridDim.x) - 1;
  auto index = static_cast<std::int32_t>(blockIdx.x) - 1;
  LamportUnit unit = LamportUnit::of<kWide>(args.shape, index);
  LamportPiece<kWide, Vectors> piece;
  wait_for_producers();
  if (!unit.tags) piece.load(args, unit);
  LaneIds ids = LaneIds::load(args.params, unit.token);
  const StepState state = StepState::load(workspace.header());
  const auto active = to_bits<Words>(args.mask());
  const RankBits<Words> peers = active.without(workspace.rank);
  const Epoch epoch = protocol::next_epoch(state.epoch);
  const std::int32_t bank = lamport_bank(epoch);
  if (__syncthreads_or(state.failed)) return;
  if (threadIdx.x == 0) begin_step(args, epoch);
  // Each round sends a unit and takes the one before; the last round only takes.
  LamportUnit sent{};
  bool sends = true;
  for (bool takes = false;; takes = true) {
    if (sends) {
      const RankBits<Words> ranks = ids.visits(args.ownership, active);
      if (unit.tags) {
        send_tags(args, unit.token, ids, peers, ranks, bank, epoch);
        if (warp_id() == kLamportWarps - 1) keep_tags(args, unit.token, ids, ranks);
      } else {
        piece.send(args, unit, bank, ranks);
      }
    }
    if (takes) {
      const bool taken = sent.tags
                             ? take_tags(args, sent.token, peers, bank, epoch)
                             : take_pieces<Words, kWide, Vectors>(args, sent, peers, bank, epoch);
      if (!taken || !sends) return;
    }
    sent = unit;
    index += stride;
    sends = index < args.shape.num_units;
    if (!sends) continue;
    unit = LamportUnit::of<kWide>(args.shape, index);
    if (!unit.tags) piece.load(args, unit);
    ids = LaneIds::load(args.params, unit.token);
  }
}

template <int Words, bool kWide, int Vectors>
__global__ void __launch_bounds__(kLamportThreads, kLamportBlocksPerSm)
    lamport_dispatch_kernel(const __grid_constant__ LamportDispatchArgs args) {
  if (args.early) launch_dependents();
  if (blockIdx.x == 0) {
    dispatch_lines<Words>(shared_object<LamportLines>(), args);
  } else {
    dispatch_rows<Words, kWide, Vectors>(args);
  }
}

}  // namespace moe_ep::cuda
