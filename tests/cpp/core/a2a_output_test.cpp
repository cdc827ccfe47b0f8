// Quantised outputs of moe_a2a_combine: MXFP8, MXFP4, NVFP4 in every scale layout, against values
// computed here from the contract's formulas.
#include <moe_ep/a2a.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/a2a_world.hpp"
#include "support/float_oracle.hpp"

namespace moe_ep {
namespace {

using namespace testing;

enum class Format { kMxfp8, kMxfp4, kNvfp4 };

const FormatOracle kE4m3(4, 3, false, 1);
const FormatOracle kE2m1(2, 1, false);

struct Quantised {
  std::vector<std::uint8_t> values;  // one code an element
  std::vector<std::uint8_t> scales;  // one a block
};

Quantised quantise(Format format, const std::vector<float>& row, float scalar_scale) {
  const std::size_t block = format == Format::kNvfp4 ? 16 : 32;
  const FormatOracle& values = format == Format::kMxfp8 ? kE4m3 : kE2m1;
  Quantised result;
  for (std::size_t first = 0; first < row.size(); first += block) {
    const std::size_t end = std::min(first + block, row.size());
    float amax = 0;
    for (std::size_t i = first; i < end; ++i)
      amax = std::max(amax, std::fabs(row[i]));
    if (format == Format::kNvfp4) {
      const float wanted = amax * scalar_scale / 6.0f;
      const std::uint32_t scale = kE4m3.encode(double{wanted});
      result.scales.push_back(static_cast<std::uint8_t>(scale));
      const auto factor = static_cast<float>(kE4m3.decode(scale));
      for (std::size_t i = first; i < end; ++i) {
        const float scaled = row[i] * scalar_scale;
        result.values.push_back(static_cast<std::uint8_t>(
            factor == 0 ? (std::signbit(scaled) ? 8 : 0) : kE2m1.encode(double{scaled / factor})));
      }
    } else {
      // The smallest power of two that takes amax to the largest value or below.
      int exponent = -127;
      while (std::ldexp(values.values.back(), exponent) < double{amax})
        ++exponent;
      result.scales.push_back(static_cast<std::uint8_t>(amax == 0 ? 0 : exponent + 127));
      for (std::size_t i = first; i < end; ++i) {
        result.values.push_back(
            static_cast<std::uint8_t>(values.encode(std::ldexp(double{row[i]}, -exponent))));
      }
    }
  }
  return result;
}

std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

// The contract's index formulas.
std::int64_t scale_index(SfLayout layout, std::int64_t r, std::int64_t c, std::int64_t cols) {
  const std::int64_t tiles = (cols + 3) / 4;
  if (layout == SfLayout::k128x4) {
    return ((r / 128) * tiles + c / 4) * 512 + (r % 32) * 16 + (r % 128 / 32) * 4 + c % 4;
  }
  if (layout == SfLayout::k8x4) return ((r / 8) * tiles + c / 4) * 32 + (r % 8) * 4 + c % 4;
  return r * cols + c;
}

std::int64_t scale_bytes(SfLayout layout, std::int64_t rows, std::int64_t cols) {
  if (layout == SfLayout::kLinear) return rows * cols;
  return round_up(rows, layout == SfLayout::k128x4 ? 128 : 8) * round_up(cols, 4);
}

void expect_quantised(Format format, SfLayout layout, std::int64_t hidden, std::int64_t tokens,
                      float scalar_scale) {
  GroupStep step =
      random_step(static_cast<std::uint64_t>(hidden + tokens), 2, 4, 3, hidden, tokens);
  step.any_bits = false;
  step.num_tokens = {tokens, tokens / 2};
  random_ids(step);  // some tokens come back as zeros
  const A2aWorld world(2, tokens, 16 + 12, 2 * hidden);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    A2aStep runner(world, rank, metainfo, step, 16);
    runner.dispatch();
    A2aCombineArgs combine = runner.combine_args();
    const std::int64_t n = combine.local_num_tokens;
    const std::int64_t block = format == Format::kNvfp4 ? 16 : 32;
    const std::int64_t cols = (hidden + block - 1) / block;
    const std::int64_t width = format == Format::kMxfp8 ? hidden : (hidden + 1) / 2;
    const Bytes output(static_cast<std::size_t>(n * width), std::byte{0x5a});
    const Bytes scales(static_cast<std::size_t>(scale_bytes(layout, n, cols)), std::byte{0x5a});
    combine.output = output.view(format == Format::kMxfp8 ? kFloat8E4M3FN : kUInt8, {n, width});
    combine.output_scales = scales.view(format == Format::kNvfp4 ? kFloat8E4M3FN : kUInt8,
                                        {scale_bytes(layout, n, cols)});
    combine.sf_layout = layout;
    combine.output_scalar_scale = double{scalar_scale};
    moe_a2a_combine(combine);

    std::vector<std::uint8_t> expected_scales(scales.size());  // padding is zero
    for (std::int64_t token = 0; token < n; ++token) {
      const auto rows = reference::contributions(step, rank, token);
      std::vector<float> sums;
      for (std::size_t i = 0; i < static_cast<std::size_t>(hidden); ++i) {
        sums.push_back(reference::sum(rows, i));
      }
      const Quantised expected = quantise(format, sums, scalar_scale);
      for (std::int64_t c = 0; c < cols; ++c) {
        expected_scales[static_cast<std::size_t>(scale_index(layout, token, c, cols))] =
            expected.scales[static_cast<std::size_t>(c)];
      }
      for (std::int64_t i = 0; i < hidden; ++i) {
        auto code = static_cast<std::uint8_t>(
            output.data()[token * width + (format == Format::kMxfp8 ? i : i / 2)]);
        if (format != Format::kMxfp8) code = i % 2 == 0 ? code & 15 : code >> 4;
        check(code == expected.values[static_cast<std::size_t>(i)],
              "element " + std::to_string(i) + " of token " + std::to_string(token) + " must be " +
                  std::to_string(expected.values[static_cast<std::size_t>(i)]) + ", got " +
                  std::to_string(code));
      }
    }
    check(std::memcmp(scales.data(), expected_scales.data(), scales.size()) == 0, "scales differ");
  });
}

TEST(A2aOutputTest, QuantisedOutputsAreTheFormulas) {
  for (const SfLayout layout : {SfLayout::kLinear, SfLayout::k128x4, SfLayout::k8x4}) {
    for (const Format format : {Format::kMxfp8, Format::kMxfp4, Format::kNvfp4}) {
      expect_quantised(format, layout, 64, 5, 1.0f);
      expect_quantised(format, layout, 160, 9, 0.25f);
    }
  }
}

TEST(A2aOutputTest, RaggedRowsAndManyTokensKeepTheLayout) {
  for (const SfLayout layout : {SfLayout::kLinear, SfLayout::k128x4, SfLayout::k8x4}) {
    expect_quantised(Format::kMxfp8, layout, 33, 131, 1.0f);
    expect_quantised(Format::kNvfp4, layout, 34, 130, 3.0f);
  }
}

// FR-102: what saturates or fades away.
TEST(A2aOutputTest, ScalarScaleReachesBothEndsOfTheScaleFormat) {
  expect_quantised(Format::kNvfp4, SfLayout::kLinear, 32, 4, 1e6f);
  expect_quantised(Format::kNvfp4, SfLayout::kLinear, 32, 4, 1e-6f);
}

TEST(A2aOutputTest, PackedTypeNamesTheSameOutput) {
  GroupStep step = random_step(1, 1, 2, 1, 32, 2);
  step.any_bits = false;
  step.num_tokens = {2};
  step.ids = {{0, 1}};
  const A2aWorld world(1, 2, 16 + 4, 64);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    std::vector<std::vector<std::byte>> outputs;
    for (const bool packed_type : {false, true}) {
      A2aStep runner(world, rank, metainfo, step, 16);
      runner.dispatch();
      A2aCombineArgs combine = runner.combine_args();
      const Bytes output(32);
      const Bytes scales(2);
      combine.output = output.view(packed_type ? kFloat4E2M1FNx2 : kUInt8, {2, 16});
      combine.output_scales = scales.view(packed_type ? kFloat8E8M0FNU : kUInt8, {2, 1});
      moe_a2a_combine(combine);
      outputs.emplace_back(output.data(), output.data() + output.size());
      outputs.back().insert(outputs.back().end(), scales.data(), scales.data() + scales.size());
    }
    check(outputs[0] == outputs[1], "outputs differ");
  });
}

TEST(A2aOutputTest, ScalesOfAnotherSizeOrTypeAreRefused) {
  GroupStep step = random_step(2, 1, 2, 1, 64, 3);
  step.num_tokens = {3};
  step.ids = {{0, 1, 0}};
  const A2aWorld world(1, 3, 16 + 4, 128);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    A2aStep runner(world, rank, metainfo, step, 16);
    runner.dispatch();
    const Bytes memory(4096);
    const auto refused = [&](DType output, DType scales, std::int64_t count, SfLayout layout) {
      A2aCombineArgs combine = runner.combine_args();
      const std::int64_t width = output == kFloat8E4M3FN ? 64 : 32;
      combine.output = memory.view(output, {3, width});
      combine.output_scales = memory.view(scales, {count});
      combine.sf_layout = layout;
      try {
        moe_a2a_combine(combine);
      } catch (const std::invalid_argument&) {
        return true;
      }
      return false;
    };
    EXPECT_TRUE(refused(kFloat8E4M3FN, kUInt8, 5, SfLayout::kLinear));
    EXPECT_TRUE(refused(kFloat8E4M3FN, kUInt8, 6, SfLayout::k128x4));
    EXPECT_TRUE(refused(kFloat8E4M3FN, kUInt8, 512, SfLayout::k8x4));
    EXPECT_TRUE(refused(kFloat8E4M3FN, kFloat8E4M3FN, 6, SfLayout::kLinear));
    EXPECT_TRUE(refused(kUInt8, kFloat32, 6, SfLayout::kLinear));
    EXPECT_TRUE(refused(kUInt8, kFloat8E4M3FN, 6, SfLayout::kLinear));
    EXPECT_FALSE(refused(kUInt8, kFloat8E4M3FN, 12, SfLayout::kLinear));
  });
}

}  // namespace
}  // namespace moe_ep
