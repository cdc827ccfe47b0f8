#include "protocol/scale_layout.hpp"

#include <gtest/gtest.h>

#include <set>

namespace moe_ep::protocol {
namespace {

constexpr SfLayout kLayouts[] = {SfLayout::k128x4, SfLayout::k8x4, SfLayout::kLinear};

TEST(ScaleLayoutTest, KnownOffsets) {
  constexpr auto k128x4 = SfLayout::k128x4;
  EXPECT_EQ(scale_offset(k128x4, 0, 0, 8), 0);
  EXPECT_EQ(scale_offset(k128x4, 0, 3, 8), 3);
  EXPECT_EQ(scale_offset(k128x4, 1, 0, 8), 16);
  EXPECT_EQ(scale_offset(k128x4, 31, 0, 8), 31 * 16);
  EXPECT_EQ(scale_offset(k128x4, 32, 0, 8), 4);
  EXPECT_EQ(scale_offset(k128x4, 127, 3, 8), 511);
  EXPECT_EQ(scale_offset(k128x4, 0, 4, 8), 512);
  EXPECT_EQ(scale_offset(k128x4, 128, 0, 8), 1024);
  EXPECT_EQ(scale_offset(k128x4, 128, 0, 5), 1024);
  constexpr auto k8x4 = SfLayout::k8x4;
  EXPECT_EQ(scale_offset(k8x4, 0, 3, 8), 3);
  EXPECT_EQ(scale_offset(k8x4, 1, 0, 8), 4);
  EXPECT_EQ(scale_offset(k8x4, 7, 3, 8), 31);
  EXPECT_EQ(scale_offset(k8x4, 0, 4, 8), 32);
  EXPECT_EQ(scale_offset(k8x4, 8, 0, 8), 64);
  EXPECT_EQ(scale_offset(SfLayout::kLinear, 3, 2, 7), 23);
}

TEST(ScaleLayoutTest, PadsToWholeTiles) {
  EXPECT_EQ(scale_matrix_bytes(SfLayout::k128x4, 1, 1), 512);
  EXPECT_EQ(scale_matrix_bytes(SfLayout::k128x4, 129, 5), 256 * 8);
  EXPECT_EQ(scale_matrix_bytes(SfLayout::k8x4, 9, 4), 16 * 4);
  EXPECT_EQ(scale_matrix_bytes(SfLayout::kLinear, 9, 5), 45);
  for (const SfLayout layout : kLayouts)
    EXPECT_EQ(scale_matrix_bytes(layout, 0, 7), 0);
}

TEST(ScaleLayoutTest, EveryByteBelongsToOneScale) {
  for (const SfLayout layout : kLayouts) {
    for (const std::int64_t rows : {1, 8, 9, 127, 128, 129, 300}) {
      for (const std::int64_t cols : {1, 3, 4, 5, 8, 90}) {
        const std::int64_t bytes = scale_matrix_bytes(layout, rows, cols);
        std::set<std::int64_t> offsets;
        for (std::int64_t row = 0; row < scale_padded_rows(layout, rows); ++row) {
          for (std::int64_t col = 0; col < scale_padded_cols(layout, cols); ++col) {
            const std::int64_t offset = scale_offset(layout, row, col, cols);
            ASSERT_TRUE(offset >= 0 && offset < bytes);
            ASSERT_TRUE(offsets.insert(offset).second);
          }
        }
        ASSERT_EQ(static_cast<std::int64_t>(offsets.size()), bytes);
      }
    }
  }
}

}  // namespace
}  // namespace moe_ep::protocol
