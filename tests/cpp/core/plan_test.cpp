// The plan is the workspace, before it exists.
#include <moe_ep/host.hpp>
#include <moe_ep/plan.hpp>

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace moe_ep {
namespace {

MoEEpCommParams params_of(std::int64_t max_tokens, std::int64_t hidden) {
  return {.num_experts = 16, .top_k = 3, .max_tokens_per_rank = max_tokens, .hidden_size = hidden};
}

TEST(PlanTest, RegionsCoverTheSliceWithoutGapOrOverlap) {
  for (const int world_size : {1, 2, 4, 8, 16}) {
    for (const std::int64_t max_tokens : {1, 3, 255, 4097}) {
      for (const std::int64_t hidden : {1, 7, 2880}) {
        HostAlltoAllConfig config;
        config.eplb_stats_num_experts = max_tokens == 3 ? 16 : 0;
        config.extra_payload_bytes_per_token = hidden;
        const WorkspacePlan plan =
            plan_workspace(world_size, params_of(max_tokens, hidden), config);
        std::int64_t end = 0;
        std::set<std::string> names;
        for (const WorkspaceRegion& region : plan.regions) {
          EXPECT_EQ(region.offset, end) << region.name;
          EXPECT_GE(region.bytes, 0) << region.name;
          EXPECT_TRUE(names.insert(region.name).second) << region.name;
          end = region.offset + region.bytes;
        }
        EXPECT_EQ(end, plan.bytes_per_rank);
      }
    }
  }
}

TEST(PlanTest, InstanceTakesExactlyThePlan) {
  HostAlltoAllConfig config;
  config.extra_payload_bytes_per_token = 100;
  config.eplb_stats_num_experts = 9;
  const MoEEpCommParams params = params_of(33, 130);
  HostAlltoAll comm({}, params, config);
  EXPECT_EQ(comm.workspace_bytes(), plan_workspace(1, params, config).bytes_per_rank);
}

// Issue 2: payload + combine + 1 %, without the regions of other transports.
TEST(PlanTest, LargeStepTakesLittleMoreThanItsRows) {
  const MoEEpCommParams params = {
      .num_experts = 256, .top_k = 8, .max_tokens_per_rank = 4096, .hidden_size = 7168};
  const std::int64_t rows = 2 * 4096;
  const std::int64_t payload = rows * (2 * 7168 + 8 * 4 + 8 * 4);
  const std::int64_t combine = rows * 2 * 7168;
  HostAlltoAllConfig config;
  config.lamport = false;
  EXPECT_LE(plan_workspace(2, params, config).bytes_per_rank, (payload + combine) / 100 * 101);
}

TEST(PlanTest, BytesBeyondFourGibibytesAreCounted) {
  const MoEEpCommParams params = {
      .num_experts = 256, .top_k = 8, .max_tokens_per_rank = 131072, .hidden_size = 7168};
  EXPECT_GT(plan_workspace(4, params).bytes_per_rank, 4ll * 131072 * 2 * 2 * 7168);
}

TEST(PlanTest, WrongSizesAreRefused) {
  EXPECT_THROW(plan_workspace(0, params_of(4, 8)), std::invalid_argument);
  EXPECT_THROW(plan_workspace(257, params_of(4, 8)), std::invalid_argument);
  EXPECT_THROW(plan_workspace(3, params_of(4, 8)), std::invalid_argument);
  EXPECT_THROW(plan_workspace(2, params_of(0, 8)), std::invalid_argument);
  // Sizes that no 64-bit offset can hold.
  EXPECT_THROW(plan_workspace(2, params_of(2147483647, 1 << 29)), std::invalid_argument);
  HostAlltoAllConfig config;
  config.timeout_sec = 0;
  EXPECT_THROW(plan_workspace(2, params_of(4, 8), config), std::invalid_argument);
}

}  // namespace
}  // namespace moe_ep
