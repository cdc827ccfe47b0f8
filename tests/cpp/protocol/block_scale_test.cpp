// Quantised outputs against scales and codes found by search, in double.
#include "protocol/block_scale.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "support/float_oracle.hpp"

namespace moe_ep::protocol {
namespace {

using testing::bits_of;
using testing::float_of;
using testing::FormatOracle;
using testing::sweep_floats;

const FormatOracle& e4m3() {
  static const FormatOracle kOracle(4, 3, false, 1);
  return kOracle;
}
const FormatOracle& e2m1() {
  static const FormatOracle kOracle(2, 1, false);
  return kOracle;
}

BlockAmax amax_of(const std::vector<float>& x) {
  BlockAmax amax;
  for (const float value : x)
    amax.add(value);
  return amax;
}

// Smallest exponent >= -127 with size <= max_value * 2^exponent.
int smallest_exponent(double size, double max_value) {
  int exponent = -127;
  while (size > std::ldexp(max_value, exponent))
    ++exponent;
  return exponent;
}

template <class Format>
void expect_mx(const FormatOracle& oracle) {
  sweep_floats(oracle, [&](float value) {
    if (!std::isfinite(value)) return;
    const std::uint8_t scale = Format::scale(amax_of({value}), 0.0f);
    const int exponent =
        smallest_exponent(std::fabs(static_cast<double>(value)), oracle.values.back());
    ASSERT_EQ(scale, exponent + 127) << value;
    for (const float part : {1.0f, 0.99f, 0.5f, 0.3f, -0.1f, 0.01f}) {
      const float x = value * part;
      const double scaled = std::ldexp(static_cast<double>(x), -exponent);
      ASSERT_LE(std::fabs(scaled), oracle.values.back());  // nothing saturates
      ASSERT_EQ(Format::value(x, scale, 0.0f), oracle.encode(scaled)) << x << " of " << value;
    }
  });
}

TEST(BlockScaleTest, Mxfp8RoundsTheExponentUp) {
  expect_mx<Mxfp8>(e4m3());
}
TEST(BlockScaleTest, Mxfp4RoundsTheExponentUp) {
  expect_mx<Mxfp4>(e2m1());
}

TEST(BlockScaleTest, MxAtTheSteps) {
  EXPECT_EQ(Mxfp8::scale(amax_of({448.0f}), 1.0f), 127);
  EXPECT_EQ(Mxfp8::scale(amax_of({std::nextafterf(448.0f, 500.0f)}), 1.0f), 128);
  EXPECT_EQ(Mxfp4::scale(amax_of({-6.0f, 1.0f}), 1.0f), 127);
  EXPECT_EQ(Mxfp4::scale(amax_of({std::nextafterf(6.0f, 7.0f)}), 1.0f), 128);
  EXPECT_EQ(Mxfp4::scale(amax_of({float_of(0x7f7fffff)}), 1.0f), 253);
  EXPECT_EQ(Mxfp8::scale(amax_of({0x1p-149f}), 1.0f), 0);
}

// (amax * g) / 6 and (x * g) / scale in float32: double holds the exact product and a quotient
// whose second rounding changes nothing.
TEST(BlockScaleTest, Nvfp4FollowsItsFormula) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 20000; ++trial) {
    const float g = trial % 3 == 0 ? 1.0f : std::exp2(normal(random) * 8);
    std::vector<float> x(16);
    for (float& value : x)
      value = normal(random) * std::exp2(normal(random) * 6);
    double size = 0;
    for (const float value : x)
      size = std::max(size, std::fabs(static_cast<double>(value)));
    const auto rounded = [](double value) {
      return static_cast<double>(static_cast<float>(value));
    };
    const std::uint8_t scale = Nvfp4::scale(amax_of(x), g);
    ASSERT_EQ(scale, e4m3().encode(rounded(rounded(size * static_cast<double>(g)) / 6)));
    for (const float value : x) {
      const double scaled = rounded(static_cast<double>(value) * static_cast<double>(g));
      const std::uint32_t want = scale == 0 ? (std::signbit(value) ? 8u : 0u)
                                            : e2m1().encode(rounded(scaled / e4m3().decode(scale)));
      ASSERT_EQ(Nvfp4::value(value, scale, g), want) << value << " with " << g;
    }
  }
}

// Exact ties show whether it divides or multiplies by a rounded reciprocal.
TEST(BlockScaleTest, Nvfp4TiesGoToEven) {
  for (std::uint32_t code = 0; code < 0x7e; ++code) {
    const double tie = (e4m3().values[code] + e4m3().values[code + 1]) / 2;
    EXPECT_EQ(Nvfp4::scale(amax_of({static_cast<float>(6 * tie)}), 1.0f), (code + 1) / 2 * 2);
  }
  for (std::uint8_t scale = 1; scale < 0x7f; ++scale) {
    for (std::uint32_t code = 0; code < 7; ++code) {
      const double tie = (e2m1().values[code] + e2m1().values[code + 1]) / 2;
      const auto x = static_cast<float>(tie * e4m3().values[scale]);
      EXPECT_EQ(Nvfp4::value(x, scale, 1.0f), (code + 1) / 2 * 2);
    }
  }
}

TEST(BlockScaleTest, Nvfp4ScaleSaturates) {
  EXPECT_EQ(Nvfp4::scale(amax_of({6.0f * 448.0f}), 1.0f), 0x7e);
  EXPECT_EQ(Nvfp4::scale(amax_of({1e30f}), 1e30f), 0x7e);
  EXPECT_EQ(Nvfp4::value(1e30f, 0x7e, 1e30f), 0x7);
  EXPECT_EQ(Nvfp4::value(-1e30f, 0x7e, 1e30f), 0xf);
}

template <class Format>
std::vector<std::uint8_t> quantized(const std::vector<float>& x, std::uint8_t* scale) {
  std::vector<std::uint8_t> values((x.size() + Format::kElementsPerByte - 1) /
                                       static_cast<std::size_t>(Format::kElementsPerByte),
                                   0xaa);
  *scale = quantize_block<Format>(x.data(), static_cast<int>(x.size()), 1.0f, values.data());
  return values;
}

TEST(BlockScaleTest, BlockOfZerosHasScaleCodeZero) {
  std::uint8_t scale = 1;
  const std::vector<float> zeros{0.0f, -0.0f, 0.0f};
  EXPECT_EQ(quantized<Mxfp8>(zeros, &scale), (std::vector<std::uint8_t>{0x00, 0x80, 0x00}));
  EXPECT_EQ(scale, 0);
  EXPECT_EQ(quantized<Mxfp4>(zeros, &scale), (std::vector<std::uint8_t>{0x80, 0x00}));
  EXPECT_EQ(scale, 0);
  EXPECT_EQ(quantized<Nvfp4>(zeros, &scale), (std::vector<std::uint8_t>{0x80, 0x00}));
  EXPECT_EQ(scale, 0);
}

TEST(BlockScaleTest, PacksTheEvenElementLow) {
  std::uint8_t scale = 0;
  EXPECT_EQ(quantized<Mxfp4>({6.0f, -4.0f, 0.5f}, &scale), (std::vector<std::uint8_t>{0xe7, 0x01}));
  EXPECT_EQ(scale, 127);
  EXPECT_EQ(quantized<Nvfp4>({6.0f, -4.0f, 0.5f}, &scale), (std::vector<std::uint8_t>{0xe7, 0x01}));
  EXPECT_EQ(scale, E4M3::from_float(1.0f));
}

TEST(BlockScaleTest, NotFinite) {
  for (const float intruder : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
    std::uint8_t scale = 0;
    const std::vector<float> x{448.0f, intruder, 1.0f, 0.0f};
    EXPECT_EQ(quantized<Mxfp8>(x, &scale), (std::vector<std::uint8_t>{0x7e, 0x7f, 0x38, 0x00}));
    EXPECT_EQ(scale, 127);
    EXPECT_EQ(quantized<Mxfp4>(x, &scale), (std::vector<std::uint8_t>{0x00, 0x00}));
    EXPECT_EQ(scale, E8M0::kNan);
    EXPECT_EQ(quantized<Nvfp4>(x, &scale), (std::vector<std::uint8_t>{0x00, 0x00}));
    EXPECT_EQ(scale, E4M3::kNan);
  }
}

TEST(BlockScaleTest, FullBlocksComeBackWithinHalfAStep) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<float> x(32);
    for (float& value : x)
      value = normal(random);
    std::uint8_t scale = 0;
    const std::vector<std::uint8_t> values = quantized<Mxfp8>(x, &scale);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float back = E4M3::to_float(values[i]) * E8M0::to_float(scale);
      ASSERT_NEAR(back, x[i], std::fabs(x[i]) / 16 + E8M0::to_float(scale) / 1024);
    }
  }
}

}  // namespace
}  // namespace moe_ep::protocol
