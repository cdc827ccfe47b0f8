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

// Whether the hop names a row of a block of a rank; the end of a list does not.
template <class Params>
MOE_EP_HD constexpr bool can_be_hop(const Params& params, const Hop& hop) {
  return hop.rank >= 0 && hop.rank < params.workspace.layout.num_ranks && hop.row >= 0 &&
         hop.row < params.tokens_per_rank;
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
    if (!can_be_hop(params, hop) || !params.active.test(hop.rank)) return;
    visit(hop);
  }
}

// A number of rows as far as a block can hold them.
MOE_EP_HD constexpr std::int32_t within_block(std::int32_t rows, std::int32_t tokens_per_rank) {
  return rows < 0 ? 0 : rows > tokens_per_rank ? tokens_per_rank : rows;
}

// Rows of block `src` that an accepted dispatch brought: what recv_counts says, which peers and the
// user could have changed, within the block.
MOE_EP_HD inline std::int32_t num_received(const Workspace& workspace, std::int32_t tokens_per_rank,
                                           std::int32_t src) {
  return within_block(workspace.recv_counts()[src], tokens_per_rank);
}

}  // namespace moe_ep::protocol
