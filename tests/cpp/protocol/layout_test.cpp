// The layout of a slice: regions are disjoint, aligned and large enough for whatever a step within
// the reservation puts into them. Sizes are recomputed in 128-bit arithmetic.
#include "protocol/layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "protocol/step.hpp"

namespace moe_ep::protocol {
namespace {

using Wide = __int128;

struct Region {
  std::string name;
  Wide begin;
  Wide bytes;
};

Wide wide(std::int64_t value) {
  return value;
}

// What each control region must hold, from its purpose.
std::vector<Region> control_regions(const WorkspaceLayout& layout) {
  const Wide ranks = layout.num_ranks;
  const Wide hops = std::min<Wide>(ranks, 64);
  return {
      {"header", 0, 128},
      {"lines", layout.lines, 128 * ranks},
      {"recv_counts", layout.recv_counts, 4 * ranks},
      {"send_counts", layout.send_counts, 4 * ranks},
      {"hops", layout.hops, 8 * wide(layout.max_tokens) * hops},
      {"arrivals", layout.arrivals, 1024 * ranks},
      {"chunks", layout.chunks, 16 * ranks * wide(layout.max_tokens)},
      {"eplb", layout.eplb, 4 * ranks * layout.eplb_experts},
  };
}

// Every region of a step with these payload rows.
std::vector<Region> step_regions(const WorkspaceLayout& layout, std::int32_t tokens_per_rank,
                                 const std::vector<std::int32_t>& row_bytes,
                                 std::int64_t combine_row_bytes) {
  const Wide rows = wide(layout.num_ranks) * tokens_per_rank;
  std::vector<Region> regions = control_regions(layout);
  regions.push_back({"combine", layout.combine, rows * combine_row_bytes});
  const auto placement = PayloadPlacement::make(layout, tokens_per_rank, row_bytes.data(),
                                                static_cast<std::int32_t>(row_bytes.size()));
  for (std::size_t payload = 0; payload < row_bytes.size(); ++payload) {
    regions.push_back({"payload " + std::to_string(payload), placement.offsets[payload],
                       rows * row_bytes[payload]});
    EXPECT_GE(placement.offsets[payload], placement.begin);
  }
  return regions;
}

std::string text(Wide value) {
  return std::to_string(static_cast<double>(value));
}

::testing::AssertionResult fits(std::vector<Region> regions, std::int64_t slice_bytes) {
  std::stable_sort(regions.begin(), regions.end(),
                   [](const Region& a, const Region& b) { return a.begin < b.begin; });
  Wide end = 0;
  std::string last = "the slice's start";
  for (const Region& region : regions) {
    if (region.begin % kAlign != 0) {
      return ::testing::AssertionFailure() << region.name << " is not aligned";
    }
    if (region.begin < end) {
      return ::testing::AssertionFailure() << region.name << " begins at " << text(region.begin)
                                           << ", before " << last << " ends at " << text(end);
    }
    if (region.bytes > 0) {
      end = region.begin + region.bytes;
      last = region.name;
    }
  }
  if (end > slice_bytes) {
    return ::testing::AssertionFailure()
           << last << " ends at " << text(end) << " of " << slice_bytes;
  }
  return ::testing::AssertionSuccess();
}

WorkspaceLayout layout_for(std::int32_t num_ranks, std::int32_t max_tokens, std::int32_t eplb,
                           std::int64_t dispatch_row_bytes, std::int64_t combine_row_bytes) {
  return WorkspaceLayout::make(
      num_ranks, max_tokens, eplb,
      WorkspaceLayout::required_bytes(num_ranks, max_tokens, eplb, dispatch_row_bytes,
                                      combine_row_bytes));
}

// Splits `total` row bytes over `count` payloads.
std::vector<std::int32_t> split(std::int32_t total, int count, std::mt19937& random) {
  std::vector<std::int32_t> parts(static_cast<std::size_t>(count), 1);
  for (std::int32_t rest = total - count; rest > 0;) {
    const auto take = std::min<std::int32_t>(rest, 1 + static_cast<std::int32_t>(random() % 977));
    parts[random() % parts.size()] += take;
    rest -= take;
  }
  return parts;
}

TEST(LayoutTest, AlignUpRoundsToTheNextMultiple) {
  for (std::int64_t bytes = 0; bytes < 1000; ++bytes) {
    const std::int64_t up = align_up(bytes);
    ASSERT_EQ(up % kAlign, 0);
    ASSERT_TRUE(up >= bytes && up < bytes + kAlign) << bytes;
  }
}

TEST(LayoutTest, RegionsNeverOverlapForAnyRankCount) {
  std::mt19937 random(1);
  for (std::int32_t num_ranks = 1; num_ranks <= kMaxRanks; ++num_ranks) {
    for (const std::int32_t max_tokens : {1, 3, 33, 4097}) {
      for (const std::int32_t eplb : {0, 1, 257}) {
        constexpr std::int32_t kDispatchRow = 8011;
        const auto layout = layout_for(num_ranks, max_tokens, eplb, kDispatchRow, 5003);
        for (const std::int32_t tokens : {1, max_tokens / 2 + 1, max_tokens}) {
          for (const int payloads : {1, 3, kMaxPayloads}) {
            const auto mix = split(kDispatchRow, payloads, random);
            ASSERT_TRUE(fits(step_regions(layout, tokens, mix, 5003), layout.slice_bytes))
                << "R " << num_ranks << ", C " << max_tokens << ", T " << tokens << ", E' " << eplb
                << ", payloads " << payloads;
          }
        }
      }
    }
  }
}

TEST(LayoutTest, EveryTokenCountUpToTheCapacityFitsWithEveryPayloadMix) {
  std::mt19937 random(2);
  for (const std::int32_t num_ranks : {1, 2, 3, 8, 65}) {
    for (const std::int32_t dispatch_row : {8, 9, 127, 128, 129, 1000}) {
      constexpr std::int32_t kMaxTokens = 65;
      const auto layout = layout_for(num_ranks, kMaxTokens, 0, dispatch_row, 7);
      for (std::int32_t tokens = 1; tokens <= kMaxTokens; ++tokens) {
        for (int payloads = 1; payloads <= kMaxPayloads; ++payloads) {
          // What is carried may also be less than what is reserved.
          const std::int32_t carried =
              std::max<std::int32_t>(payloads, random() % 2 == 0 ? dispatch_row : dispatch_row / 2);
          const auto mix = split(carried, payloads, random);
          ASSERT_TRUE(fits(step_regions(layout, tokens, mix, 7), layout.slice_bytes))
              << "R " << num_ranks << ", row " << dispatch_row << ", T " << tokens;
        }
      }
    }
  }
}

// FR-013: sizes that class instances of these shapes ask for.
TEST(LayoutTest, SizesCoverTheLayoutForOddCapacitiesAndEveryTopK) {
  for (std::int32_t num_ranks = 1; num_ranks <= 16; ++num_ranks) {
    for (const std::int32_t max_tokens : {1, 3, 7, 33, 255, 4097}) {
      for (std::int32_t top_k = 1; top_k <= 22; ++top_k) {
        for (const std::int32_t hidden : {7, 2880, 7168}) {
          const std::vector<std::int32_t> mix{2 * hidden, 4 * top_k, 4 * top_k};
          const auto layout =
              layout_for(num_ranks, max_tokens, 0, 2 * hidden + 8 * top_k, 2 * hidden);
          ASSERT_TRUE(fits(step_regions(layout, max_tokens, mix, 2 * hidden), layout.slice_bytes))
              << "R " << num_ranks << ", C " << max_tokens << ", K " << top_k << ", H " << hidden;
        }
      }
    }
  }
}

// FR-012: nothing of a step moves the combine rows.
TEST(LayoutTest, CombineRegionStartsAtOneOffsetInEveryStep) {
  const auto layout = layout_for(4, 100, 8, 900, 300);
  for (const std::int64_t dispatch_row : {1, 900, 90'000}) {
    for (const std::int64_t combine_row : {1, 300, 30'000}) {
      EXPECT_EQ(layout_for(4, 100, 8, dispatch_row, combine_row).combine, layout.combine);
    }
  }
}

TEST(LayoutTest, PlacementDependsOnlyOnWhatTheSignatureCovers) {
  const std::int32_t rows[] = {100, 32, 7};
  const auto layout = layout_for(3, 50, 0, 200, 64);
  const auto a = PayloadPlacement::make(layout, 10, rows, 3);
  const auto b = PayloadPlacement::make(layout, 10, rows, 3);
  for (int payload = 0; payload < 3; ++payload)
    EXPECT_EQ(a.offsets[payload], b.offsets[payload]);
  EXPECT_EQ(a.begin, a.offsets[0]);
}

// A caller's workspace may have any number of bytes.
TEST(LayoutTest, OddSliceSizesKeepPayloadsAlignedAndInside) {
  const std::int32_t rows[] = {100, 32, 7};
  const std::int64_t needed = WorkspaceLayout::required_bytes(3, 50, 0, 139, 64);
  for (std::int64_t spare = 0; spare < 300; ++spare) {
    const auto layout = WorkspaceLayout::make(3, 50, 0, needed + spare);
    ASSERT_TRUE(fits(step_regions(layout, 50, {rows, rows + 3}, 64), layout.slice_bytes)) << spare;
    ASSERT_LE(layout.payload_room(), layout.slice_bytes - layout.combine);
    ASSERT_GT(layout.payload_room(), layout.slice_bytes - layout.combine - kAlign);
  }
}

TEST(LayoutTest, SizeGrowsWithEveryArgument) {
  const auto size = [](auto... sizes) { return WorkspaceLayout::required_bytes(sizes...); };
  const std::int64_t base = size(4, 100, 8, 900, 300);
  EXPECT_GT(size(5, 100, 8, 900, 300), base);
  EXPECT_GT(size(4, 101, 8, 900, 300), base);
  EXPECT_GE(size(4, 100, 200, 900, 300), base);
  EXPECT_GT(size(4, 100, 8, 901, 300), base);
  EXPECT_GT(size(4, 100, 8, 900, 301), base);
  EXPECT_EQ(base % kAlign, 0);
}

// FR-151, FR-152: what lies beyond 2^31 rows-bytes is computed in 64 bits.
TEST(LayoutTest, OffsetsBeyondFourGibibytesAreExact) {
  struct Case {
    std::int32_t num_ranks, max_tokens, hidden_bytes;
  };
  for (const Case& c : {Case{8, 32768, 16384}, Case{4, 131072, 14336}, Case{256, 8192, 14336},
                        Case{256, 1 << 20, 1 << 20}, Case{2, 0x7fffffff, 4096}}) {
    constexpr std::int32_t kIds = 64;
    const auto layout =
        layout_for(c.num_ranks, c.max_tokens, 0, c.hidden_bytes + 2 * kIds, c.hidden_bytes);
    const std::vector<std::int32_t> mix{c.hidden_bytes, kIds, kIds};
    EXPECT_GT(layout.slice_bytes, std::int64_t{1} << 32);
    EXPECT_TRUE(fits(step_regions(layout, c.max_tokens, mix, c.hidden_bytes), layout.slice_bytes))
        << "R " << c.num_ranks << ", C " << c.max_tokens;
    const Wide rows = wide(c.num_ranks) * c.max_tokens;
    const Wide payload = rows * (c.hidden_bytes + 2 * kIds);
    const Wide combine = rows * c.hidden_bytes;
    const Wide control = layout.combine;
    EXPECT_GE(layout.slice_bytes, control + combine + payload);
    EXPECT_LE(layout.slice_bytes, control + combine + payload + 16 * kAlign);
  }
}

// The addresses themselves, over an address range that is reserved in arithmetic only.
TEST(LayoutTest, RowAddressesBeyondFourGibibytesAreExact) {
  constexpr std::int32_t kRanks = 8;
  constexpr std::int32_t kTokens = 32768;
  constexpr std::int32_t kRow = 16384;
  DispatchParams dispatch;
  dispatch.workspace.layout = layout_for(kRanks, kTokens, 0, kRow + 64, kRow);
  dispatch.workspace.slice_stride = dispatch.workspace.layout.slice_bytes + 4096;
  const auto origin = std::uintptr_t{1} << 44;
  dispatch.workspace.base = reinterpret_cast<std::byte*>(origin);
  dispatch.workspace.rank = 5;
  dispatch.tokens_per_rank = kTokens;
  dispatch.num_payloads = 2;
  dispatch.signature.fields[kFirstRowBytes] = kRow;
  dispatch.signature.fields[kFirstRowBytes + 1] = 64;
  dispatch.placement = PayloadPlacement::make(dispatch.workspace.layout, kTokens,
                                              dispatch.signature.fields + kFirstRowBytes, 2);
  CombineParams combine;
  combine.workspace = dispatch.workspace;
  combine.tokens_per_rank = kTokens;
  combine.row_bytes = kRow;
  const auto address = [](const std::byte* pointer) {
    return static_cast<Wide>(reinterpret_cast<std::uintptr_t>(pointer));
  };
  for (const std::int32_t owner : {0, 7}) {
    for (const std::int32_t src : {0, 7}) {
      for (const std::int32_t row : {0, kTokens - 1}) {
        const Wide slice = wide(origin) + wide(owner) * dispatch.workspace.slice_stride;
        const Wide index = wide(src) * kTokens + row;
        EXPECT_EQ(address(dispatch.row(owner, 0, src, row)),
                  slice + dispatch.placement.offsets[0] + index * kRow);
        EXPECT_EQ(address(dispatch.row(owner, 1, src, row)),
                  slice + dispatch.placement.offsets[1] + index * 64);
        EXPECT_EQ(address(combine.row(owner, src, row)),
                  slice + combine.workspace.layout.combine + index * kRow);
      }
    }
  }
  EXPECT_EQ(address(reinterpret_cast<std::byte*>(dispatch.workspace.hops(kTokens - 1))),
            wide(origin) + 5 * wide(dispatch.workspace.slice_stride) +
                dispatch.workspace.layout.hops + wide(kTokens - 1) * kRanks * 8);
}

// So many rows that even their number takes more than 32 bits.
TEST(LayoutTest, RowNumbersBeyond32BitsAreExact) {
  constexpr std::int32_t kRanks = 256;
  constexpr std::int32_t kTokens = 1 << 25;
  DispatchParams dispatch;
  dispatch.workspace.layout = layout_for(kRanks, kTokens, 0, 8, 8);
  dispatch.workspace.slice_stride = dispatch.workspace.layout.slice_bytes;
  dispatch.workspace.base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 44);
  dispatch.tokens_per_rank = kTokens;
  dispatch.signature.fields[kFirstRowBytes] = 8;
  CombineParams combine;
  combine.workspace = dispatch.workspace;
  combine.tokens_per_rank = kTokens;
  combine.row_bytes = 8;
  const Wide rows = wide(kRanks) * kTokens - 1;
  EXPECT_EQ(wide(dispatch.row(0, 0, kRanks - 1, kTokens - 1) - dispatch.row(0, 0, 0, 0)), rows * 8);
  EXPECT_EQ(wide(combine.row(0, kRanks - 1, kTokens - 1) - combine.row(0, 0, 0)), rows * 8);
}

TEST(LayoutTest, LinesAndStatisticsOfEveryRankAreApart) {
  for (const std::int32_t num_ranks : {1, 2, 255, 256}) {
    const auto layout = layout_for(num_ranks, 5, 33, 64, 64);
    for (std::int32_t src = 0; src + 1 < num_ranks; ++src) {
      ASSERT_EQ(layout.line(src + 1) - layout.line(src), 128);
      ASSERT_EQ(layout.eplb_row(src + 1) - layout.eplb_row(src), 4 * 33);
      ASSERT_EQ(layout.arrival_row(src + 1) - layout.arrival_row(src), 1024);
      ASSERT_EQ(layout.chunk_row(src + 1) - layout.chunk_row(src), 16 * 5);
    }
    EXPECT_LE(layout.arrival_row(num_ranks - 1) + 1024, layout.chunks);
    EXPECT_LE(layout.chunk_row(num_ranks - 1) + 16 * 5, layout.eplb);
    EXPECT_LE(layout.line(num_ranks - 1) + 128, layout.recv_counts);
    EXPECT_LE(layout.eplb_row(num_ranks - 1) + 4 * 33, layout.combine);
  }
}

// The memory target of a large step: payload + combine + 1 %.
TEST(LayoutTest, ControlRegionsTakeLessThanOnePerCentOfALargeStep) {
  const std::int64_t rows = 2 * 4096;
  const std::int64_t dispatch = 14336 + 64;
  const std::int64_t bytes = WorkspaceLayout::required_bytes(2, 4096, 0, dispatch, 14336);
  EXPECT_LE(bytes, (rows * (dispatch + 14336)) * 101 / 100);
}

}  // namespace
}  // namespace moe_ep::protocol
