// Who owns an expert, and which ranks a token visits.
//
// Ownership is contiguous: with base, rem = divmod(num_experts, num_ranks), ranks below rem own
// base + 1 experts, the others base. A pick whose id lies outside [0, num_experts) is void. Picks
// of one token on one rank collapse: the token visits each rank at most once.
#pragma once

#include <cstdint>

#include <moe_ep/rank_mask.hpp>
#include <moe_ep/types.hpp>

namespace moe_ep::protocol {

struct Ownership {
  std::int32_t num_experts = 0;
  std::int32_t num_ranks = 1;
  std::int32_t base = 0;  // experts of the ranks from rem on
  std::int32_t rem = 0;   // ranks that own one more

  static MOE_EP_HD constexpr Ownership make(std::int32_t num_experts, std::int32_t num_ranks) {
    return {num_experts, num_ranks, num_experts / num_ranks, num_experts % num_ranks};
  }

  MOE_EP_HD constexpr bool is_void(std::int64_t id) const { return id < 0 || id >= num_experts; }

  // The rank that owns `id`, which is not void.
  MOE_EP_HD constexpr std::int32_t owner(std::int32_t id) const {
    // Unsigned: base + 1 may be 2^31.
    const auto expert = static_cast<std::uint32_t>(id);
    const auto first_small = static_cast<std::uint32_t>(rem);
    const std::uint32_t wide = static_cast<std::uint32_t>(base) + 1;
    const std::uint32_t large = first_small * wide;  // experts of the larger ranks
    return static_cast<std::int32_t>(
        expert < large ? expert / wide
                       : first_small + (expert - large) / static_cast<std::uint32_t>(base));
  }

  MOE_EP_HD constexpr std::int32_t first_expert(std::int32_t rank) const {
    return rank * base + (rank < rem ? rank : rem);
  }
  MOE_EP_HD constexpr std::int32_t num_local(std::int32_t rank) const {
    return base + (rank < rem ? 1 : 0);
  }
};

// A token's expert ids: int32 or int64, read as int64.
struct IdRow {
  const void* ids = nullptr;
  bool wide = false;

  MOE_EP_HD constexpr std::int64_t operator[](std::int32_t k) const {
    return wide ? static_cast<const std::int64_t*>(ids)[k]
                : static_cast<const std::int32_t*>(ids)[k];
  }
};

// The active ranks that own at least one of the token's picks.
MOE_EP_HD constexpr RankMask ranks_of_token(const Ownership& ownership, const IdRow& ids,
                                            std::int32_t top_k, const RankMask& active) {
  RankMask ranks;
  for (std::int32_t k = 0; k < top_k; ++k) {
    const std::int64_t id = ids[k];
    if (!ownership.is_void(id)) ranks.set(ownership.owner(static_cast<std::int32_t>(id)));
  }
  return ranks & active;
}

}  // namespace moe_ep::protocol
