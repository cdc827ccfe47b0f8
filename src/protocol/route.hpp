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

// Calls `visit(hop)` for every hop of a token, in ascending rank order.
template <class Visit>
MOE_EP_HD void for_each_hop(const Workspace& workspace, std::int32_t token, Visit&& visit) {
  const Hop* hops = workspace.hops(token);
  for (std::int32_t hop = 0; hop < workspace.layout.hops_per_token() && hops[hop].rank >= 0;
       ++hop) {
    visit(hops[hop]);
  }
}

}  // namespace moe_ep::protocol
