// Routing of one rank's tokens: which ranks each visits and in which row of its block.
//
// Compact placement: the rows that a rank receives from one source are that source's tokens in
// ascending order, the same every run. By token (Lamport): token t lies in row t. The hop lists
// stay in the own slice; combine reads them to find the rows that come back.
#pragma once

#include <cstdint>

#include "protocol/step.hpp"

namespace moe_ep::protocol {

enum class RowPlacement : std::uint8_t { kCompact, kByToken };

// Fills hops of every token and send_counts. One thread.
MOE_EP_HD inline void route_tokens(const DispatchParams& params,
                                   RowPlacement placement = RowPlacement::kCompact) {
  std::int32_t* counts = params.workspace.send_counts();
  for (std::int32_t rank = 0; rank < params.workspace.layout.num_ranks; ++rank)
    counts[rank] = 0;
  const std::int32_t max_hops = params.workspace.layout.hops_per_token();
  for (std::int32_t token = 0; token < params.num_tokens; ++token) {
    Hop* hops = params.workspace.hops(token);
    std::int32_t num_hops = 0;
    ranks_of_token(params.ownership, params.ids(token), params.top_k, params.active)
        .for_each([&](std::int32_t rank) {
          const std::int32_t row = counts[rank]++;
          hops[num_hops++] = {rank, placement == RowPlacement::kCompact ? row : token};
        });
    if (num_hops < max_hops) hops[num_hops] = {-1, 0};
  }
}

// Calls `visit(hop)` for every hop of a token, in ascending rank order. Params: of either phase.
//
// The list lies in memory that peers can write to. An entry that route_tokens() cannot have put
// there ends it: whoever uses a hop gets a row within the block of an active rank.
template <class Params, class Visit>
MOE_EP_HD void for_each_hop(const Params& params, std::int32_t token, Visit&& visit) {
  const Workspace& workspace = params.workspace;
  const Hop* hops = workspace.hops(token);
  for (std::int32_t index = 0; index < workspace.layout.hops_per_token(); ++index) {
    const Hop hop = hops[index];
    if (hop.rank < 0 || hop.rank >= workspace.layout.num_ranks || !params.active.test(hop.rank) ||
        hop.row < 0 || hop.row >= params.tokens_per_rank) {
      return;
    }
    visit(hop);
  }
}

// Rows of block `src` that an accepted dispatch brought: what recv_counts says, which peers and the
// user could have changed, within the block.
MOE_EP_HD inline std::int32_t num_received(const Workspace& workspace, std::int32_t tokens_per_rank,
                                           std::int32_t src) {
  const std::int32_t count = workspace.recv_counts()[src];
  return count < 0 ? 0 : count > tokens_per_rank ? tokens_per_rank : count;
}

}  // namespace moe_ep::protocol
