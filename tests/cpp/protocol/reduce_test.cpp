// The combine sum. The oracle adds in double and rounds each step to float32, which is the float32
// sum: double holds more than twice the bits.
#include "protocol/reduce.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "support/float_oracle.hpp"

namespace moe_ep::protocol {
namespace {

using testing::bits_of;
using testing::FormatOracle;

template <class Type>
std::vector<typename Type::Bits> stored(std::initializer_list<float> values) {
  std::vector<typename Type::Bits> bits;
  for (const float value : values)
    bits.push_back(Type::from_float(value));
  return bits;
}

template <class In, class Out>
float combined(std::initializer_list<float> values) {
  const auto bits = stored<In>(values);
  return Out::to_float(combine_element<In, Out>(bits.data(), static_cast<int>(bits.size())));
}

TEST(ReduceTest, NoContributionGivesPlusZero) {
  EXPECT_EQ((combine_element<Bf16, Bf16>(nullptr, 0)), 0);
  EXPECT_EQ((combine_element<Fp16, Fp32>(nullptr, 0)), 0u);
  EXPECT_EQ(bits_of(sum_element(0, [](int) { return 1.0f; })), 0u);
}

TEST(ReduceTest, LoneContributionComesBackUnchanged) {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    if (std::isnan(Bf16::to_float(bits))) {
      EXPECT_TRUE(std::isnan(Bf16::to_float(combine_element<Bf16, Bf16>(&bits, 1))));
    } else {
      ASSERT_EQ((combine_element<Bf16, Bf16>(&bits, 1)), bits);
    }
    if (std::isnan(Fp16::to_float(bits))) {
      EXPECT_TRUE(std::isnan(Fp16::to_float(combine_element<Fp16, Fp16>(&bits, 1))));
    } else {
      ASSERT_EQ((combine_element<Fp16, Fp16>(&bits, 1)), bits);
    }
  }
}

TEST(ReduceTest, ZerosKeepTheirSign) {
  EXPECT_TRUE(std::signbit(combined<Bf16, Bf16>({-0.0f})));
  EXPECT_TRUE(std::signbit(combined<Bf16, Fp32>({-0.0f, -0.0f})));
  EXPECT_FALSE(std::signbit(combined<Bf16, Bf16>({-0.0f, 0.0f})));
  EXPECT_FALSE(std::signbit(combined<Bf16, Bf16>({1.0f, -1.0f})));
}

TEST(ReduceTest, IdentityLeavesEveryContribution) {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const float value = Bf16::to_float(static_cast<std::uint16_t>(pattern));
    if (std::isnan(value)) continue;
    ASSERT_EQ(bits_of(sum_next(kSumIdentity, value)), bits_of(value));
  }
}

// What a sum in the elements' own type would lose.
TEST(ReduceTest, AccumulatesInFloat32) {
  EXPECT_EQ((combined<Bf16, Bf16>({1.0f, 0x1p-9f, -1.0f})), 0x1p-9f);
  EXPECT_EQ((combined<Fp16, Fp16>({1.0f, 0x1p-12f, -1.0f})), 0x1p-12f);
  EXPECT_EQ((combined<Bf16, Bf16>({1.0f, 0x1p-9f, 0x1p-9f, 0x1p-9f, 0x1p-9f})), 1.0f + 0x1p-7f);
  EXPECT_EQ((combined<Fp16, Fp16>({60000.0f, 60000.0f, -60000.0f})), 60000.0f);
}

TEST(ReduceTest, AddsInTheOrderGiven) {
  EXPECT_EQ((combined<Fp32, Fp32>({0x1p24f, 1.0f, 1.0f})), 0x1p24f);
  EXPECT_EQ((combined<Fp32, Fp32>({1.0f, 1.0f, 0x1p24f})), 0x1p24f + 2.0f);
}

template <class In, class Out>
void expect_matches_double(const FormatOracle& in, const FormatOracle& out) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 100000; ++trial) {
    const int num_rows = static_cast<int>(random() % 9);
    std::vector<typename In::Bits> values(static_cast<std::size_t>(num_rows));
    float sum = 0.0f;
    for (int r = 0; r < num_rows; ++r) {
      std::uint32_t code = 0;
      do {
        code = static_cast<std::uint32_t>(random()) & (2 * in.sign_mask() - 1);
        // Half of the time close together, so that low bits matter.
        if (random() % 2 == 0) code = (code & 0x8fffu) | 0x3000u;
      } while (!std::isfinite(in.decode(code)));
      values[static_cast<std::size_t>(r)] = static_cast<typename In::Bits>(code);
      const double value = in.decode(code);
      sum = static_cast<float>(r == 0 ? value : static_cast<double>(sum) + value);
    }
    const typename Out::Bits got = combine_element<In, Out>(values.data(), num_rows);
    if (std::isnan(sum)) {
      ASSERT_TRUE(out.is_nan(got));
    } else {
      ASSERT_EQ(got, out.encode(static_cast<double>(sum))) << "trial " << trial;
    }
  }
}

TEST(ReduceTest, RoundsOnceAtTheEnd) {
  const FormatOracle bf16(8, 7, true);
  const FormatOracle fp16(5, 10, true);
  expect_matches_double<Bf16, Bf16>(bf16, bf16);
  expect_matches_double<Fp16, Fp16>(fp16, fp16);
  expect_matches_double<Bf16, Fp16>(bf16, fp16);
  expect_matches_double<Fp16, Bf16>(fp16, bf16);
}

}  // namespace
}  // namespace moe_ep::protocol
