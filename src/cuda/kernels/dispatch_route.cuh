// Where the tokens of a block go.
#pragma once

#include "cuda/device/route.cuh"
#include "cuda/kernels/dispatch_args.cuh"

namespace moe_ep::cuda {

inline constexpr int kRouteGroups = 8;   // groups of 32 tokens in a batch, at most
inline constexpr int kRouteHops = 2048;  // hops of a batch, at most

struct RouteTables {
  std::int32_t next_row[kMaxRanks];  // of the block's next token at each rank
  std::uint32_t ballots[kRouteGroups][kMaxRanks];
  std::int32_t first_row[kRouteGroups][kMaxRanks];  // of each group at each rank
  protocol::Hop hops[kRouteHops];
  std::int32_t num_hops[kRouteGroups * kWarp];
};

// Adds the tokens [0, first) to next_row. All warps take groups of 32.
template <int Words>
__device__ __forceinline__ void count_earlier(RouteTables& tables, const DispatchArgs& args,
                                              const RankBits<Words>& active, std::int32_t first,
                                              bool live) {
  const std::int32_t num_ranks = args.params.workspace.layout.num_ranks;
  std::int32_t counts[Words] = {};
  bool any = false;
  for (std::int32_t group = warp_id() * kWarp; group < first; group += num_warps() * kWarp) {
    const std::int32_t token = group + lane_id();
    const auto ranks = ranks_of_token<Words>(args.params, args.ownership, active, token,
                                             live && token < first, args.ids_width);
    for_each_ballot(ranks, num_ranks, [&](auto word, int bit, std::uint32_t ballot) {
      if (lane_id() == bit) counts[decltype(word)::value] += __popc(ballot);
    });
    any = true;
  }
  if (!any) return;
#pragma unroll
  for (int word = 0; word < Words; ++word) {
    if (counts[word] != 0) atomicAdd(&tables.next_row[32 * word + lane_id()], counts[word]);
  }
}

// Which 32 tokens of a batch a warp routes: the last warps begin, since the first ones have the
// earlier tokens to count.
__device__ __forceinline__ std::int32_t group_of_warp() {
  return num_warps() - 1 - warp_id();
}

// Ranks of the warp's tokens of the batch that starts at `first`; leaves the ballots in the tables.
template <int Words>
__device__ __forceinline__ RankBits<Words> vote(RouteTables& tables, const DispatchArgs& args,
                                                const RankBits<Words>& active, std::int32_t first,
                                                std::int32_t end, bool live) {
  const std::int32_t num_ranks = args.params.workspace.layout.num_ranks;
  const std::int32_t group = group_of_warp();
  const std::int32_t token = first + group * kWarp + lane_id();
  RankBits<Words> ranks;
  if (first + group * kWarp >= end) return ranks;
  ranks = ranks_of_token<Words>(args.params, args.ownership, active, token, live && token < end,
                                args.ids_width);
  if (!live && lane_id() == 0) ranks.words[0] = 1;
  std::uint32_t ballots[Words] = {};
  for_each_ballot(ranks, num_ranks, [&](auto word, int bit, std::uint32_t ballot) {
    if (lane_id() == bit) ballots[decltype(word)::value] = ballot;
  });
#pragma unroll
  for (int word = 0; word < Words; ++word) {
    tables.ballots[group][32 * word + lane_id()] = ballots[word];
  }
  return ranks;
}

// One thread a rank: the first row of every group; next_row moves behind the batch.
__device__ __forceinline__ void place_groups(RouteTables& tables, std::int32_t num_ranks,
                                             std::int32_t num_tokens) {
  const std::int32_t num_groups = (num_tokens + kWarp - 1) / kWarp;
  for (std::int32_t rank = static_cast<std::int32_t>(threadIdx.x); rank < num_ranks;
       rank += static_cast<std::int32_t>(blockDim.x)) {
    std::int32_t row = tables.next_row[rank];
    for (std::int32_t group = 0; group < num_groups; ++group) {
      tables.first_row[group][rank] = row;
      row += __popc(tables.ballots[group][rank]);
    }
    tables.next_row[rank] = row;
  }
}

// One lane a token: its hops, for this block and (in the own slice) for the combine.
template <int Words>
__device__ __forceinline__ void list_hops(RouteTables& tables, const DispatchArgs& args,
                                          const RankBits<Words>& ranks, std::int32_t first,
                                          std::int32_t end, bool live) {
  const std::int32_t group = group_of_warp();
  const std::int32_t local = group * kWarp + lane_id();
  if (first + local >= end) return;
  const protocol::Workspace& workspace = args.params.workspace;
  protocol::Hop* kept = workspace.hops(first + local);
  protocol::Hop* shared = tables.hops + local * args.hops_per_token;
  const std::uint32_t earlier = (1u << lane_id()) - 1;
  std::int32_t num_hops = 0;
  for_each_rank(ranks, [&](std::int32_t rank) {
    const protocol::Hop hop{
        rank, tables.first_row[group][rank] + __popc(tables.ballots[group][rank] & earlier)};
    shared[num_hops] = hop;
    if (live) kept[num_hops] = hop;
    ++num_hops;
  });
  tables.num_hops[local] = num_hops;
  if (live && num_hops < workspace.layout.hops_per_token()) kept[num_hops] = {-1, 0};
}

}  // namespace moe_ep::cuda
