// A second opinion on small floating-point formats: a list of all their values, in double, written
// from the definition of a binary format, and rounding by search in that list. Shares no code with
// the library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace moe_ep::testing {

struct FormatOracle {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;  // the highest exponent holds infinity and NaNs; else it holds numbers
  int num_nan_codes;  // magnitude codes at the very top that are NaN, for formats without infinity
  std::vector<double> values;  // of every finite magnitude code, ascending; index = code
  double overflow;             // the value one step beyond the largest

  FormatOracle(int exponent_bits_, int mantissa_bits_, bool has_infinity_, int num_nan_codes_ = 0)
      : exponent_bits(exponent_bits_),
        mantissa_bits(mantissa_bits_),
        has_infinity(has_infinity_),
        num_nan_codes(num_nan_codes_) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int fields = (1 << exponent_bits) - (has_infinity ? 1 : 0);
    const int mantissas = 1 << mantissa_bits;
    for (int field = 0; field < fields; ++field) {
      for (int mantissa = 0; mantissa < mantissas; ++mantissa) {
        const double fraction = static_cast<double>(mantissa) / mantissas;
        values.push_back(field == 0 ? std::ldexp(fraction, 1 - bias)
                                    : std::ldexp(1.0 + fraction, field - bias));
      }
    }
    for (int i = 0; i < num_nan_codes; ++i)
      values.pop_back();
    const std::size_t last = values.size() - 1;
    overflow = values[last] + (values[last] - values[last - 1]);
  }

  std::uint32_t sign_mask() const { return 1u << (exponent_bits + mantissa_bits); }

  bool is_nan(std::uint32_t code) const {
    const std::uint32_t magnitude = code & (sign_mask() - 1);
    return magnitude >= values.size() + (has_infinity ? 1 : 0);
  }
  double decode(std::uint32_t code) const {
    const std::uint32_t magnitude = code & (sign_mask() - 1);
    if (is_nan(code)) return std::numeric_limits<double>::quiet_NaN();
    const double value =
        magnitude < values.size() ? values[magnitude] : std::numeric_limits<double>::infinity();
    return (code & sign_mask()) != 0 ? -value : value;
  }

  // Code of `x`, which is not NaN: nearest, ties to the even code. Beyond the largest value:
  // infinity where there is one (from half a step on), else the largest value.
  std::uint32_t encode(double x) const {
    const std::uint32_t sign = std::signbit(x) ? sign_mask() : 0;
    const double size = std::fabs(x);
    const auto infinity = static_cast<std::uint32_t>(values.size());
    const auto above = std::lower_bound(values.begin(), values.end(), size);
    if (above == values.end()) {
      if (!has_infinity) return sign | (infinity - 1);
      const double half = values.back() + (overflow - values.back()) / 2;
      return sign | (size < half ? infinity - 1 : infinity);
    }
    const auto code = static_cast<std::uint32_t>(above - values.begin());
    if (*above == size) return sign | code;
    const double down = size - values[code - 1];
    const double up = *above - size;
    return sign | (down < up || (down == up && code % 2 == 1) ? code - 1 : code);
  }
};

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Calls `visit` with float32 values where rounding to `format` can go wrong: every value of the
// format, every midpoint, their neighbours, all with both signs; then every exponent with telling
// mantissas; infinities; then random bits. No NaN.
template <class Visit>
void sweep_floats(const FormatOracle& format, Visit&& visit) {
  const auto both_signs = [&](float value) {
    visit(value);
    visit(-value);
  };
  const auto around = [&](double value) {
    const float nearest = static_cast<float>(value);
    both_signs(nearest);
    both_signs(std::nextafterf(nearest, std::numeric_limits<float>::infinity()));
    both_signs(std::nextafterf(nearest, 0.0f));
  };
  for (std::size_t i = 0; i < format.values.size(); ++i) {
    const double next = i + 1 < format.values.size() ? format.values[i + 1] : format.overflow;
    around(format.values[i]);
    around((format.values[i] + next) / 2);
  }
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t mantissa : {0u, 1u, 2u, 0x3fffffu, 0x400000u, 0x400001u, 0x7fffffu}) {
      both_signs(float_of(exponent << 23 | mantissa));
    }
  }
  both_signs(std::numeric_limits<float>::infinity());
  std::mt19937 random(7);
  for (int i = 0; i < 300000; ++i) {
    const float value = float_of(static_cast<std::uint32_t>(random()));
    if (!std::isnan(value)) visit(value);
  }
}

}  // namespace moe_ep::testing
