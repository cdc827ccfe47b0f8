// The one argument of the dispatch kernels and the tables their blocks share.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/route.cuh"
#include "cuda/kernels/launch.hpp"
#include "protocol/step.hpp"

namespace moe_ep::cuda {

struct DispatchArgs {
  protocol::DispatchParams params;
  const RankMask* default_mask = nullptr;
  FailureRecord* record = nullptr;
  FastOwnership ownership;
  std::int32_t tokens_per_block = 1;
  std::int32_t batch_tokens = kWarp;  // routed at once
  std::int32_t hops_per_token = 1;    // the most that a token can have
  std::int32_t num_pieces = 0;        // of a token's rows, all payloads one after another
  std::int32_t first_piece[kMaxPayloads] = {};
  std::int32_t width[kMaxPayloads] = {};
  bool early = false;

  MOE_EP_HD const RankMask* mask() const {
    return default_mask != nullptr ? default_mask : &params.active;
  }
};

inline constexpr int kRouteGroups = 8;   // groups of 32 tokens in a batch, at most
inline constexpr int kRouteHops = 2048;  // hops of a batch, at most

struct AwaitTables {
  SharedMask active;  // of this step
  BlockOutcome outcome;
  std::int32_t is_last;
};

struct RouteTables {
  std::int32_t next_row[kMaxRanks];  // of the block's next token at each rank
  std::uint32_t ballots[kRouteGroups][kMaxRanks];
  std::int32_t first_row[kRouteGroups][kMaxRanks];  // of each group at each rank
  protocol::Hop hops[kRouteHops];
  std::int32_t num_hops[kRouteGroups * kWarp];
};

}  // namespace moe_ep::cuda
