// What travels as tags in a Lamport dispatch: ids, weights, scales. Some blocks have nothing else:
// token by token, they send the tags of this rank's to every active peer and take the peers'.
#pragma once

#include "cuda/kernels/lamport_ids.cuh"

namespace moe_ep::cuda {

// What a lane has of a row's tags: number 32 * group + lane.
struct LamportTag {
  std::int32_t number;
  std::uint32_t bytes;      // 1 to 4; 0: there is no such tag
  bool is_id;               // made of the token's ids, not loaded
  bool whole;               // an aligned word, as all of the payload are
  const std::byte* from;    // of the users' row 0
  std::int64_t stride;      // from there to the next row
  std::byte* to;            // of row 0 of block 0 of the results
  std::uint32_t row_bytes;  // from there to the next row

  static __device__ __forceinline__ LamportTag of(const LamportDispatchArgs& args,
                                                  std::int32_t group) {
    const LamportTagShape& shape = args.tags;
    const protocol::DispatchParams& params = args.params;
    LamportTag tag;
    tag.number = group * kWarp + lane_id();
    std::int32_t payload = 1;
    std::int32_t first = 0;
#pragma unroll
    for (int next = 2; next < kMaxPayloads; ++next) {
      if (tag.number < shape.first_tag[next]) continue;
      payload = next;
      first = shape.first_tag[next];
    }
    const std::uint32_t offset = 4 * static_cast<std::uint32_t>(tag.number - first);
    tag.row_bytes = static_cast<std::uint32_t>(params.row_bytes(payload));
    tag.bytes = tag.number < shape.num_tags ? min(tag.row_bytes - offset, 4u) : 0;
    tag.is_id = payload == 1;
    tag.whole = (shape.whole_words >> payload & 1) != 0;
    tag.from = params.payloads[payload].rows + offset;
    tag.stride = params.payloads[payload].stride;
    tag.to = params.row(params.workspace.rank, payload, 0, 0) + offset;
    return tag;
  }
  // The word of this rank's token; not of ids.
  __device__ __forceinline__ std::uint32_t load(std::int32_t token) const {
    return load_word(from + token * stride, bytes, whole ? 4 : 1);
  }
  // The word of row `row` of all blocks of the results.
  __device__ __forceinline__ void store(std::int32_t row, std::uint32_t value) const {
    store_word(to + static_cast<std::int64_t>(row) * row_bytes, value, bytes, whole ? 4 : 1);
  }
};

// The hop list of an own token. One warp.
template <int Words>
__device__ __forceinline__ void list_hops(const protocol::Workspace& workspace, std::int32_t token,
                                          const RankBits<Words>& ranks) {
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

// Sends the group's tags of this rank's token, the first one to all peers, and keeps what stays
// here. A warp sends to every `parts`-th peer, a power of two. `value` is the lane's tag unless it
// is an id.
template <int Words>
__device__ __forceinline__ void send_tags(const LamportDispatchArgs& args, std::int32_t token,
                                          const LamportTag& tag, std::int32_t part,
                                          const LaneIds& ids, std::uint32_t value,
                                          const RankBits<Words>& active, Epoch epoch) {
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t me = workspace.rank;
  const RankBits<Words> ranks = ids.visits(args, active);
  const uint2 id = tag.number < kWarp ? ids.low : ids.high;
  const bool is_void = tag.is_id && LaneIds::is_void(args, id);
  if (tag.is_id) value = is_void ? protocol::kVoidId : id.x;
  std::byte* const there =
      workspace.base + args.tag_grid.at(me, token) + args.tag_grid.bank_of(epoch) + 8 * tag.number;
  std::int32_t turn = 0;
  for_each_rank(active.without(me), [&](std::int32_t peer) {
    if ((turn++ & (args.tags.parts - 1)) != part) return;
    const bool comes = ranks.test(peer);
    if (comes ? tag.bytes == 0 : tag.number != 0) return;
    store_tag(reinterpret_cast<std::uint64_t*>(there + peer * workspace.slice_stride), epoch,
              comes ? value : protocol::kNotHere);
  });
  if (part != args.tags.parts - 1) return;
  const bool stays = ranks.test(me);
  if (tag.number == 0) {  // for count_rows
    store_tag(reinterpret_cast<std::uint64_t*>(there + me * workspace.slice_stride), epoch,
              stays ? value : protocol::kNotHere);
  }
  if (tag.bytes != 0 && (stays || tag.is_id)) {
    tag.store(me * params.tokens_per_rank + token,
              tag.is_id && (is_void || !stays)
                  ? static_cast<std::uint32_t>(params.invalid_expert_id)
                  : value);
  }
  if (tag.number < kWarp && token < params.num_tokens) list_hops(workspace, token, ranks);
}

// Names every peer that has not sent its tag of `token`, and `peer`: a wait for it ran out.
template <int Words>
__device__ __attribute__((noinline)) void record_late_rows(const LamportDispatchArgs& args,
                                                           Epoch epoch, std::int32_t token,
                                                           std::int32_t peer) {
  const protocol::Workspace& workspace = args.params.workspace;
  RankBits<Words> peers = args.active<Words>().without(workspace.rank);
  RankMask missing;
  if (peer >= 0) missing.set(peer);
  for (std::int32_t src = peers.take_lowest(); src >= 0; src = peers.take_lowest()) {
    const std::uint64_t tag = load_relaxed(args.token_tags(workspace.rank, src, token, epoch));
    if (protocol::tag_epoch(tag) != epoch) missing.set(src);
  }
  record_timeout(workspace.header(), args.record, Phase::kDispatch, epoch, missing);
}

// Takes the group's tags of the other ranks' token. False, with the failure recorded, if some did
// not come.
template <int Words>
__device__ __forceinline__ bool take_tags(const LamportDispatchArgs& args, std::int32_t token,
                                          const LamportTag& tag, std::int32_t part,
                                          const RankBits<Words>& peers, Epoch epoch) {
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  std::int32_t turn = 0;
  for (std::int32_t src = 0; src < workspace.layout.num_ranks; ++src) {
    if (src == workspace.rank || (turn++ & (args.tags.parts - 1)) != part) continue;
    const std::uint64_t* tags = args.token_tags(workspace.rank, src, token, epoch);
    bool comes = peers.test(src);
    std::uint64_t word = 0;
    const bool arrived = !comes || wait_until(lamport_patience(args), [&] {
      const std::uint64_t head = load_relaxed(tags);
      if (tag.bytes != 0) word = load_relaxed(tags + tag.number);
      comes = protocol::tag_value(head) != protocol::kNotHere;
      return protocol::tag_epoch(head) == epoch &&
             (!comes || tag.bytes == 0 || protocol::tag_epoch(word) == epoch);
    });
    if (!arrived) record_late_rows<Words>(args, epoch, token, src);
    if (!__all_sync(~0u, arrived)) return false;
    if (tag.bytes == 0 || !(comes || tag.is_id)) continue;
    const std::uint32_t value = protocol::tag_value(word);
    tag.store(src * params.tokens_per_rank + token,
              tag.is_id && (!comes || value == protocol::kVoidId)
                  ? static_cast<std::uint32_t>(params.invalid_expert_id)
                  : value);
  }
  return true;
}

// A block's tokens, every so many: each warp has its groups of tags of some of them.
template <int Words>
__device__ __forceinline__ void dispatch_tags(const LamportDispatchArgs& args, std::int32_t block) {
  const protocol::DispatchParams& params = args.params;
  const LamportTagShape& shape = args.tags;
  // Warps: groups within parts within tokens.
  std::int32_t group = warp_id();
  std::int32_t part = 0;
  for (; group >= shape.groups; group -= shape.groups)
    ++part;
  const std::int32_t first = block * shape.tokens_at_once + part / shape.parts;
  const std::int32_t step = shape.num_blocks * shape.tokens_at_once;
  part &= shape.parts - 1;
  LamportTag tag = LamportTag::of(args, group);
  const std::byte* ids_from = LaneIds::place(params, first);
  forget(tag.from);
  forget(tag.to);
  forget(ids_from);
  if (first >= step) return;
  LaneIds ids;
  std::uint32_t value = 0;
  const auto load = [&](std::int32_t token) {
    ids.load(params, ids_from, token < params.num_tokens);
    if (token < params.num_tokens && tag.bytes != 0 && !tag.is_id) value = tag.load(token);
  };
  wait_for_producers();
  load(first);
  const auto active = args.active<Words>();
  const StepState state = StepState::load(params.workspace.header());
  if (__any_sync(~0u, state.failed)) return;  // no barrier follows
  const Epoch epoch = protocol::next_epoch(state.combined);
  for (;;) {
    // Each round sends a token's and takes the one before, while the next one is loaded; the last
    // round only takes.
    std::int32_t token = first;
#pragma unroll 1
    for (std::int32_t round = 0;; ++round, token += step) {
      forget(round);  // no copy of the code for the first one
      const bool sends = token < params.tokens_per_rank;
      if (sends) {
        send_tags(args, token, tag, part, ids, value, active, epoch);
        ids_from += step * params.topk_ids_stride;
        load(token + step);
      }
      if (round > 0 &&
          !take_tags(args, token - step, tag, part, active.without(params.workspace.rank), epoch)) {
        return;
      }
      if (!sends) break;
    }
    group += kLamportWarps;
    if (group >= shape.groups) return;
    tag = LamportTag::of(args, group);
    ids_from = LaneIds::place(params, first);
    load(first);
  }
}

}  // namespace moe_ep::cuda
