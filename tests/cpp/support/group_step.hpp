// One step of a whole group, made from a seed: every rank can tell what every other one sends and
// what its experts answer, so that results are checked without any message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <moe_ep/rank_mask.hpp>
#include <moe_ep/types.hpp>

namespace moe_ep::testing {

// What travels besides ids; also the salt of its rows.
enum PayloadKind : int {
  kHiddenPayload = 0,
  kWeightsPayload = 1,
  kScalePayload = 2,
  kFirstExtraPayload = 3,
};

struct GroupStep {
  std::uint64_t seed = 1;
  int num_ranks = 1;
  std::int64_t num_experts = 1;
  std::int64_t top_k = 1;
  std::int64_t hidden = 1;           // H
  std::int64_t tokens_per_rank = 1;  // T
  DType dtype = kBFloat16;           // of what experts answer
  std::int64_t invalid_expert_id = -1;
  RankMask active;
  bool any_bits = true;  // experts answer infinities, NaNs, subnormals and zeros, too
  std::vector<std::int64_t> num_tokens;        // [rank]
  std::vector<std::vector<std::int64_t>> ids;  // [rank][token * top_k + k]

  std::int64_t id(int rank, std::int64_t token, std::int64_t k) const {
    return ids[static_cast<std::size_t>(rank)][static_cast<std::size_t>(token * top_k + k)];
  }
};

// A 64-bit hash of its arguments.
std::uint64_t mix(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0, std::uint64_t d = 0);

// Sets every rank's token count: random up to T.
void random_counts(GroupStep& step);

// Sets the ids of every token that num_tokens announces: random experts, sometimes the same twice,
// some void; every fifth token has only void picks where `void_tokens`.
void random_ids(GroupStep& step, bool void_tokens = true);

// The same id for all picks of all tokens.
void constant_ids(GroupStep& step, std::int64_t id);

// A step of `num_ranks` ranks with random counts and ids and everybody active.
GroupStep random_step(std::uint64_t seed, int num_ranks, std::int64_t num_experts,
                      std::int64_t top_k, std::int64_t hidden, std::int64_t tokens_per_rank,
                      DType dtype = kBFloat16);

// `bytes` bytes of token `token` of rank `src`.
std::vector<std::byte> payload_row(const GroupStep& step, int kind, int src, std::int64_t token,
                                   std::int64_t bytes);

// What rank `rank`'s experts answer for token `token` of rank `src`: H elements of step.dtype.
std::vector<std::byte> expert_row(const GroupStep& step, int rank, int src, std::int64_t token);

}  // namespace moe_ep::testing
