#include "support/group_step.hpp"

#include <cstring>

namespace moe_ep::testing {
namespace {

// splitmix64
std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct BinaryFormat {
  int exponent_bits;
  int mantissa_bits;
};

BinaryFormat format_of(DType dtype) {
  if (dtype == kFloat16) return {5, 10};
  if (dtype == kFloat32) return {8, 23};
  return {8, 7};
}

// A number within a factor of 2^6 of 1, so that the order of additions shows; or, sometimes, any
// bit pattern at all.
std::uint32_t random_bits(std::uint64_t random, BinaryFormat format, bool any_bits) {
  const int width = 1 + format.exponent_bits + format.mantissa_bits;
  const std::uint32_t all = width == 32 ? ~0u : (1u << width) - 1;
  if (any_bits && random % 16 == 0) {
    const auto pattern = static_cast<std::uint32_t>(random >> 8) & all;
    switch (random >> 4 & 3) {
      case 0:
        return pattern & (1u << (width - 1));  // a zero
      case 1:
        return pattern & ((1u << (width - 1)) | ((1u << format.mantissa_bits) - 1));  // tiny
      default:
        return pattern;
    }
  }
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const auto exponent = static_cast<std::uint32_t>(bias - 6 + static_cast<int>(random >> 40) % 13);
  const auto mantissa =
      static_cast<std::uint32_t>(random >> 8) & ((1u << format.mantissa_bits) - 1);
  const auto sign = static_cast<std::uint32_t>(random >> 63) << (width - 1);
  return sign | exponent << format.mantissa_bits | mantissa;
}

}  // namespace

std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  return scramble(scramble(scramble(scramble(a) ^ b) ^ c) ^ d);
}

void random_counts(GroupStep& step) {
  step.num_tokens.clear();
  for (int rank = 0; rank < step.num_ranks; ++rank) {
    step.num_tokens.push_back(
        static_cast<std::int64_t>(mix(step.seed, 1, static_cast<std::uint64_t>(rank)) %
                                  static_cast<std::uint64_t>(step.tokens_per_rank + 1)));
  }
}

void random_ids(GroupStep& step, bool void_tokens) {
  step.ids.assign(static_cast<std::size_t>(step.num_ranks), {});
  const auto experts = static_cast<std::uint64_t>(step.num_experts);
  for (int rank = 0; rank < step.num_ranks; ++rank) {
    auto& ids = step.ids[static_cast<std::size_t>(rank)];
    for (std::int64_t token = 0; token < step.num_tokens[static_cast<std::size_t>(rank)]; ++token) {
      const auto key =
          mix(step.seed, 2, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(token));
      const bool only_void = void_tokens && key % 5 == 0;
      for (std::int64_t k = 0; k < step.top_k; ++k) {
        const auto draw = mix(key, static_cast<std::uint64_t>(k));
        std::int64_t id = static_cast<std::int64_t>((draw >> 8) % experts);
        if (draw % 8 == 0 && k > 0) id = ids.back();  // twice
        if (only_void || draw % 16 == 1)
          id = draw % 3 == 0 ? -1 : draw % 3 == 1 ? -7 : step.num_experts;
        ids.push_back(id);
      }
    }
  }
}

void constant_ids(GroupStep& step, std::int64_t id) {
  step.ids.clear();
  for (const std::int64_t count : step.num_tokens) {
    step.ids.emplace_back(static_cast<std::size_t>(count * step.top_k), id);
  }
}

GroupStep random_step(std::uint64_t seed, int num_ranks, std::int64_t num_experts,
                      std::int64_t top_k, std::int64_t hidden, std::int64_t tokens_per_rank,
                      DType dtype) {
  GroupStep step;
  step.seed = seed;
  step.num_ranks = num_ranks;
  step.num_experts = num_experts;
  step.top_k = top_k;
  step.hidden = hidden;
  step.tokens_per_rank = tokens_per_rank;
  step.dtype = dtype;
  step.active = RankMask::first(num_ranks);
  random_counts(step);
  random_ids(step);
  return step;
}

std::vector<std::byte> payload_row(const GroupStep& step, int kind, int src, std::int64_t token,
                                   std::int64_t bytes) {
  const auto key = mix(step.seed, 3 + static_cast<std::uint64_t>(kind),
                       static_cast<std::uint64_t>(src), static_cast<std::uint64_t>(token));
  std::vector<std::byte> row(static_cast<std::size_t>(bytes));
  for (std::size_t at = 0; at < row.size(); at += 8) {
    const std::uint64_t word = mix(key, at);
    std::memcpy(row.data() + at, &word, row.size() - at < 8 ? row.size() - at : 8);
  }
  return row;
}

std::vector<std::byte> expert_row(const GroupStep& step, int rank, int src, std::int64_t token) {
  const auto key = mix(step.seed, 1000 + static_cast<std::uint64_t>(rank),
                       static_cast<std::uint64_t>(src), static_cast<std::uint64_t>(token));
  const BinaryFormat format = format_of(step.dtype);
  const auto size = static_cast<std::size_t>(itemsize(step.dtype));
  std::vector<std::byte> row(static_cast<std::size_t>(step.hidden) * size);
  for (std::size_t element = 0; element < static_cast<std::size_t>(step.hidden); ++element) {
    const std::uint32_t bits = random_bits(scramble(key + element), format, step.any_bits);
    std::memcpy(row.data() + element * size, &bits, size);  // little-endian
  }
  return row;
}

}  // namespace moe_ep::testing
