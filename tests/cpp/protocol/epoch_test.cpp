#include "protocol/epoch.hpp"

#include <gtest/gtest.h>

namespace moe_ep::protocol {
namespace {

constexpr Epoch kStarts[] = {0u,          1u,          0x7ffffffeu, 0x7fffffffu,
                             0x80000000u, 0xfffffffeu, 0xffffffffu};

TEST(EpochTest, NextWrapsToZero) {
  EXPECT_EQ(next_epoch(0), 1u);
  EXPECT_EQ(next_epoch(0xffffffffu), 0u);
}

// FR-065: comparisons hold across 2^31 and 2^32.
TEST(EpochTest, FlagHasReachedItsEpochAndTheNextButNoLaterOne) {
  for (const Epoch start : kStarts) {
    EXPECT_TRUE(has_reached(start, start)) << start;
    EXPECT_TRUE(has_reached(next_epoch(start), start)) << start;
    EXPECT_FALSE(has_reached(start, next_epoch(start))) << start;
    EXPECT_FALSE(has_reached(start - 1, start)) << start;
  }
}

TEST(EpochTest, DistancesUpToHalfTheRangeAreToldApart) {
  for (const Epoch start : kStarts) {
    for (const std::uint32_t distance : {1u, 2u, 70'000u, 0x7fffffffu}) {
      EXPECT_TRUE(has_reached(start + distance, start)) << start << " " << distance;
      EXPECT_FALSE(has_reached(start, start + distance)) << start << " " << distance;
    }
  }
}

}  // namespace
}  // namespace moe_ep::protocol
