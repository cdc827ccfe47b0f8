// The steps of a chaos run. Sizes change from step to step, so that rows which come too late would
// lie where another step keeps other rows.
#pragma once

#include <moe_ep/config.hpp>

#include "support/group_step.hpp"

namespace moe_ep::testing::chaos {

inline constexpr int kNumRanks = 4;
inline constexpr int kTimeoutSec = 1;
inline constexpr std::int64_t kMaxTokens = 24;
inline constexpr std::int64_t kHidden = 512;
// Rows of ids, weights and hidden_states are multiples of 16 bytes, as counted writes need.
inline constexpr std::int64_t kTopK = 4;
inline constexpr std::int64_t kNumExperts = 8;

// Sets of ranks travel as bits.
inline constexpr std::uint64_t kEverybody = (1u << kNumRanks) - 1;
inline std::uint64_t bit(int rank) {
  return std::uint64_t{1} << rank;
}

inline RankMask mask_of(std::uint64_t bits) {
  RankMask mask;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    if ((bits >> rank & 1) != 0) mask.set(rank);
  }
  return mask;
}

inline std::vector<int> ranks_of(std::uint64_t bits) {
  std::vector<int> ranks;
  mask_of(bits).for_each([&](int rank) { ranks.push_back(rank); });
  return ranks;
}

inline GroupStep chaos_step(std::uint64_t seed, std::uint64_t active) {
  const auto tokens = static_cast<std::int64_t>(mix(seed, 17) % kMaxTokens) + 1;
  GroupStep step = random_step(seed, kNumRanks, kNumExperts, kTopK, kHidden, tokens);
  step.active = mask_of(active);
  return step;
}

inline MoEEpCommParams chaos_params() {
  return {.num_experts = kNumExperts,
          .top_k = kTopK,
          .max_tokens_per_rank = kMaxTokens,
          .hidden_size = kHidden};
}

}  // namespace moe_ep::testing::chaos
