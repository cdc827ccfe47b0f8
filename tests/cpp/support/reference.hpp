// What a step must give: a second implementation, written from the contract in plain loops over
// doubles and floats. Shares no code with the library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <moe_ep/types.hpp>

#include "support/group_step.hpp"

namespace moe_ep::testing::reference {

// ---- numbers

inline std::uint32_t load_bits(DType dtype, const std::byte* at) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, static_cast<std::size_t>(itemsize(dtype)));
  return bits;
}

// The value of an element of BF16, FP16 or FP32.
inline double decode(DType dtype, const std::byte* at) {
  const std::uint32_t bits = load_bits(dtype, at);
  if (dtype == kFloat16) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double mantissa = bits & 1023;
    double value = exponent == 0    ? std::ldexp(mantissa, -24)
                   : exponent == 31 ? (mantissa == 0 ? std::numeric_limits<double>::infinity()
                                                     : std::numeric_limits<double>::quiet_NaN())
                                    : std::ldexp(1024 + mantissa, exponent - 25);
    return (bits & 0x8000u) != 0 ? -value : value;
  }
  const std::uint32_t wide = dtype == kBFloat16 ? bits << 16 : bits;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return static_cast<double>(value);
}

// The distance of neighbouring numbers of the type around `value`, which is finite.
inline double ulp(DType dtype, double value) {
  const int mantissa_bits = dtype == kFloat16 ? 10 : dtype == kBFloat16 ? 7 : 23;
  const int min_exponent = dtype == kFloat16 ? -14 : -126;
  const int exponent = value == 0 ? min_exponent : std::max(std::ilogb(value), min_exponent);
  return std::ldexp(1.0, exponent - mantissa_bits);
}

// `value` rounded to the type, to nearest, ties to even; beyond the largest number, infinity.
inline double rounded(DType dtype, double value) {
  if (std::isnan(value) || std::isinf(value)) return value;
  const double step = ulp(dtype, value);
  const double result = std::copysign(std::nearbyint(value / step) * step, value);
  const double largest = dtype == kFloat16    ? 65504.0
                         : dtype == kBFloat16 ? std::ldexp(255.0, 120)
                                              : double{std::numeric_limits<float>::max()};
  return std::fabs(result) > largest ? std::copysign(std::numeric_limits<double>::infinity(), value)
                                     : result;
}

// Whether the stored element is `value`: the same number and sign, or any NaN for a NaN.
inline bool is_value(DType dtype, const std::byte* at, double value) {
  const double stored = decode(dtype, at);
  if (std::isnan(value)) return std::isnan(stored);
  return stored == value && std::signbit(stored) == std::signbit(value);
}

// ---- routing

// Experts are dealt out in order: the first num_experts % num_ranks ranks get one more.
inline int owner(std::int64_t id, std::int64_t num_experts, int num_ranks) {
  if (id < 0 || id >= num_experts) return -1;
  std::int64_t end = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    end += num_experts / num_ranks;
    if (rank < num_experts % num_ranks) end += 1;
    if (id < end) return rank;
  }
  return -1;
}

// The active ranks that a token visits, ascending.
inline std::vector<int> visited(const GroupStep& step, int src, std::int64_t token) {
  std::vector<bool> visits(static_cast<std::size_t>(step.num_ranks));
  for (std::int64_t k = 0; k < step.top_k; ++k) {
    const int rank = owner(step.id(src, token, k), step.num_experts, step.num_ranks);
    if (rank >= 0 && step.active.test(rank)) visits[static_cast<std::size_t>(rank)] = true;
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < step.num_ranks; ++rank) {
    if (visits[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

// The tokens of `src` that arrive at `dst`, in the order of their rows.
inline std::vector<std::int64_t> arrivals(const GroupStep& step, int src, int dst) {
  std::vector<std::int64_t> tokens;
  if (!step.active.test(src)) return tokens;
  for (std::int64_t token = 0; token < step.num_tokens[static_cast<std::size_t>(src)]; ++token) {
    for (const int rank : visited(step, src, token)) {
      if (rank == dst) tokens.push_back(token);
    }
  }
  return tokens;
}

// ---- combine

// What the ranks that received the token answered, as numbers: [rank][element].
inline std::vector<std::vector<double>> contributions(const GroupStep& step, int src,
                                                      std::int64_t token) {
  std::vector<std::vector<double>> rows;
  for (const int rank : visited(step, src, token)) {
    const std::vector<std::byte> row = expert_row(step, rank, src, token);
    std::vector<double> numbers;
    for (std::int64_t element = 0; element < step.hidden; ++element) {
      numbers.push_back(decode(step.dtype, row.data() + element * itemsize(step.dtype)));
    }
    rows.push_back(std::move(numbers));
  }
  return rows;
}

// The float32 sum in the order given, starting with the first; of nothing, +0.
inline float sum(const std::vector<std::vector<double>>& rows, std::size_t element) {
  if (rows.empty()) return 0.0f;
  float total = static_cast<float>(rows[0][element]);
  for (std::size_t row = 1; row < rows.size(); ++row) {
    total = total + static_cast<float>(rows[row][element]);
  }
  return total;
}

// How far a low-precision combine may be from the exact sum: for every contribution 2^-4 of it and
// 2^-10 of its block's scale, and half an output ulp.
inline double low_precision_bound(const std::vector<std::vector<double>>& rows, std::size_t element,
                                  DType out, double exact) {
  double bound = 0.5 * ulp(out, exact);
  for (const auto& row : rows) {
    double amax = 0;
    const std::size_t first = element / 128 * 128;
    for (std::size_t i = first; i < std::min(first + 128, row.size()); ++i) {
      if (std::isfinite(row[i])) amax = std::max(amax, std::fabs(row[i]));
    }
    bound += std::ldexp(std::fabs(row[element]), -4) + std::ldexp(amax / 448.0, -10);
  }
  return bound;
}

}  // namespace moe_ep::testing::reference
