// The FP8 wire: its layout, its special values and its error bound, the latter in long double.
#include "protocol/fp8_wire.hpp"

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

using Block = std::vector<float>;  // one rank's contribution: up to 128 elements

struct Wire {
  std::vector<std::uint8_t> codes;
  float scale;
};

Wire encode(const Block& block) {
  std::uint32_t amax = 0;
  for (const float x : block)
    amax = std::max(amax, fp8_amax_bits(x));
  Wire wire{{}, fp8_scale(amax)};
  for (const float x : block)
    wire.codes.push_back(fp8_encode(x, fp8_encoder(wire.scale)));
  return wire;
}

// The float32 sums of one block over ranks.
Block combine(const std::vector<Block>& ranks) {
  std::vector<Wire> wires;
  float max_scale = 0.0f;
  for (const Block& block : ranks) {
    wires.push_back(encode(block));
    max_scale = std::max(max_scale, wires.back().scale);
  }
  const float lift = fp8_lift(max_scale);
  Block sums;
  for (std::size_t i = 0; i < ranks[0].size(); ++i) {
    const float sum = sum_element(static_cast<int>(ranks.size()), [&](int r) {
      const Wire& wire = wires[static_cast<std::size_t>(r)];
      return fp8_decode(wire.codes[i], mul_rn(wire.scale, lift));
    });
    sums.push_back(fp8_unlift(sum, lift));
  }
  return sums;
}

// Half the gap between `value` and its upper neighbour in `Out`.
template <class Out>
long double half_ulp(float value) {
  const auto bits = static_cast<typename Out::Bits>(Out::from_float(std::fabs(value)));
  const float up = Out::to_float(static_cast<typename Out::Bits>(bits + 1));
  return (static_cast<long double>(up) - static_cast<long double>(Out::to_float(bits))) / 2;
}

// |out - exact| <= sum over ranks (2^-4 |x_r| + 2^-10 s_r) + half an output ulp, for every element.
template <class Out>
void expect_within_bound(const std::vector<Block>& ranks, const char* what) {
  std::vector<long double> scales;
  for (const Block& block : ranks) {
    float amax = 0.0f;
    for (const float x : block)
      amax = std::max(amax, std::isfinite(x) ? std::fabs(x) : 0.0f);
    scales.push_back(static_cast<long double>(amax) / 448.0L);
  }
  const Block sums = combine(ranks);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    long double exact = 0.0L;
    long double allowed = 0.0L;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      exact += static_cast<long double>(ranks[r][i]);
      allowed += std::fabs(static_cast<long double>(ranks[r][i])) / 16 + scales[r] / 1024;
    }
    const float out = Out::to_float(Out::from_float(sums[i]));
    if (std::isinf(out)) continue;  // the sum left the range of the type
    ASSERT_LE(std::fabs(static_cast<long double>(out) - exact), allowed + half_ulp<Out>(out))
        << what << ": " << ranks.size() << " ranks, element " << i << ", out " << out << ", exact "
        << static_cast<double>(exact) << ", scale " << static_cast<double>(scales[0]);
  }
}

TEST(Fp8WireTest, RowHoldsCodesThenScales) {
  EXPECT_EQ(fp8_wire_row_bytes(7168), 7168 + 4 * 56);
  EXPECT_EQ(fp8_wire_row_bytes(1), 4 + 4);
  EXPECT_EQ(fp8_wire_row_bytes(128), 128 + 4);
  EXPECT_EQ(fp8_wire_row_bytes(129), 132 + 8);
  EXPECT_EQ(fp8_scales_offset(130), 132);
  EXPECT_EQ(fp8_num_blocks(0), 0);
}

TEST(Fp8WireTest, PaysWhereItIsSmaller) {
  EXPECT_FALSE(fp8_wire_pays(1, 2));
  EXPECT_FALSE(fp8_wire_pays(6, 2));  // 12 bytes either way
  EXPECT_TRUE(fp8_wire_pays(7, 2));
  EXPECT_FALSE(fp8_wire_pays(2, 4));
  EXPECT_TRUE(fp8_wire_pays(3, 4));
  EXPECT_TRUE(fp8_wire_pays(7168, 2));
}

TEST(Fp8WireTest, LargestElementOfABlockGetsTheLargestCode) {
  sweep_floats(FormatOracle(8, 7, true), [](float value) {
    if (!std::isfinite(value) || std::fabs(value) < 448 * 0x1p-140f) return;
    const Wire wire = encode({value, 0.0f});
    ASSERT_EQ(wire.codes[0], std::signbit(value) ? 0xfe : 0x7e) << value;
    const float back = fp8_decode(wire.codes[0], wire.scale);
    ASSERT_TRUE(std::isfinite(back)) << value;
  });
}

TEST(Fp8WireTest, BlockOfZerosHasScaleZeroAndKeepsSigns) {
  const Wire wire = encode({0.0f, -0.0f});
  EXPECT_EQ(wire.scale, 0.0f);
  EXPECT_EQ(wire.codes[0], 0x00);
  EXPECT_EQ(wire.codes[1], 0x80);
  const Block sums = combine({{0.0f, -0.0f}});
  EXPECT_EQ(bits_of(sums[0]), 0u);
  EXPECT_EQ(bits_of(sums[1]), 0x80000000u);
  EXPECT_TRUE(std::signbit(combine({{1.0f, -0.0f}})[1]));
}

TEST(Fp8WireTest, NotFiniteStaysInItsOwnPlace) {
  const float infinity = HUGE_VALF;
  for (const Block& ordinary :
       {Block{1.0f, -2.0f, 448.0f}, Block{0.0f, 0.0f, 0.0f}, Block{0x1p-149f, 0.0f, 0x1p-140f}}) {
    for (const float intruder : {infinity, -infinity, std::nanf(""), -std::nanf("")}) {
      Block block = ordinary;
      block.push_back(intruder);
      const Wire wire = encode(block);
      EXPECT_EQ(wire.scale, encode(ordinary).scale);
      EXPECT_EQ(wire.codes[3], E4M3::kNan);
      const Block sums = combine({block, {1.0f, 1.0f, 1.0f, 1.0f}});
      EXPECT_TRUE(std::isnan(sums[3]));
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_TRUE(std::isfinite(sums[i]));
    }
  }
}

TEST(Fp8WireTest, OrdinaryValuesAreExact) {
  // e4m3 times the scale 1.
  Block block{448.0f};
  for (int code = 0; code < 0x7f; ++code)
    block.push_back(E4M3::to_float(static_cast<std::uint8_t>(code)));
  EXPECT_EQ(combine({block}), block);
}

// Every float32 of up to 16 units of 2^-149, at any scale that small.
TEST(Fp8WireTest, SmallestDenormalsAreExact) {
  for (std::uint32_t amax = 1; amax <= 448 * 512; amax += amax < 2000 ? 1 : 997) {
    Block block{float_of(amax)};
    for (std::uint32_t unit = 0; unit <= std::min(amax, 16u); ++unit)
      block.push_back(float_of(unit));
    const Block sums = combine({block});
    for (std::size_t i = 1; i < block.size(); ++i)
      ASSERT_EQ(sums[i], block[i]) << amax;
  }
}

TEST(Fp8WireTest, BoundHoldsAmongDenormals) {
  for (std::uint32_t units = 500; units < 6000; units += 61) {  // the scale, in units of 2^-149
    Block block{float_of(448 * units)};
    for (std::uint32_t i = 0; i < 127; ++i)
      block.push_back(float_of(i));
    for (const std::size_t num_ranks : {1u, 3u, 8u, 64u}) {
      expect_within_bound<Fp32>(std::vector<Block>(num_ranks, block), "denormals");
    }
  }
  // One rank's scale is ordinary, the others' are tiny.
  for (std::uint32_t units = 500; units < 3000; units += 113) {
    std::vector<Block> ranks(16, Block{float_of(448 * units), float_of(3), float_of(5), 0.0f});
    for (int exponent = -150; exponent < 10; ++exponent) {
      ranks[7] = {0.0f, 0.0f, 0.0f, std::ldexp(1.0f, exponent)};
      expect_within_bound<Fp32>(ranks, "mixed scales");
    }
  }
}

template <class Type>
void expect_bound_for_random_blocks(int bits_of_type, int min_exponent, int max_exponent) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<Block> ranks(1 + random() % 8, Block(1 + random() % 32));
    const int kind = trial % 4;
    for (Block& block : ranks) {
      const int exponent =
          min_exponent + static_cast<int>(random() % unsigned(max_exponent - min_exponent));
      for (float& x : block) {
        do {
          const auto pattern = static_cast<typename Type::Bits>(random() >> (32 - bits_of_type));
          x = kind == 0   ? Type::to_float(pattern)  // any size
              : kind == 1 ? Type::to_float(static_cast<typename Type::Bits>(
                                pattern & ~(0x7ull << (bits_of_type - 4))))  // tiny
              : kind == 2 ? normal(random)                                   // usual
                          : std::ldexp(normal(random), exponent);            // one size
          x = Type::to_float(Type::from_float(x));
        } while (!std::isfinite(x));
      }
    }
    expect_within_bound<Type>(ranks, "random");
    expect_within_bound<Fp32>(ranks, "random, float32 output");
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(Fp8WireTest, BoundHoldsForBf16) {
  expect_bound_for_random_blocks<Bf16>(16, -135, 124);
}
TEST(Fp8WireTest, BoundHoldsForFp16) {
  expect_bound_for_random_blocks<Fp16>(16, -26, 12);
}
TEST(Fp8WireTest, BoundHoldsForFp32) {
  expect_bound_for_random_blocks<Fp32>(32, -150, 124);
}

TEST(Fp8WireTest, ShortRowsKeepEverythingButInfinities) {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    if (std::isfinite(Bf16::to_float(bits))) {
      ASSERT_EQ(finite_or_nan<Bf16>(bits), bits);
    } else {
      ASSERT_TRUE(std::isnan(Bf16::to_float(finite_or_nan<Bf16>(bits))));
    }
    if (std::isfinite(Fp16::to_float(bits))) {
      ASSERT_EQ(finite_or_nan<Fp16>(bits), bits);
    } else {
      ASSERT_TRUE(std::isnan(Fp16::to_float(finite_or_nan<Fp16>(bits))));
    }
  }
}

}  // namespace
}  // namespace moe_ep::protocol
