// What makes a machine fit, without one.
#include <gtest/gtest.h>

#include "cuda/nvml.hpp"

namespace moe_ep::cuda {
namespace {

GpuFacts gpu(int active, int inactive, int absent, int major = 9) {
  GpuFacts facts;
  facts.uuid = "GPU-test";
  facts.compute_major = major;
  facts.links.insert(facts.links.end(), static_cast<std::size_t>(active), LinkState::kActive);
  facts.links.insert(facts.links.end(), static_cast<std::size_t>(inactive), LinkState::kInactive);
  facts.links.insert(facts.links.end(), static_cast<std::size_t>(absent), LinkState::kAbsent);
  return facts;
}

PlatformFacts machine(std::vector<GpuFacts> gpus) {
  PlatformFacts facts;
  facts.cuda_driver_version = 13000;
  facts.gpus = std::move(gpus);
  return facts;
}

TEST(PlatformTest, SlotsWithoutALinkDoNotCount) {
  EXPECT_EQ(explain(machine({gpu(18, 0, 18), gpu(18, 0, 18)}), 13000), "");
}

TEST(PlatformTest, OneInactiveLinkIsNamed) {
  EXPECT_NE(explain(machine({gpu(18, 0, 18), gpu(17, 1, 18)}), 13000).find("link 17 of GPU-test"),
            std::string::npos);
}

TEST(PlatformTest, AGpuOnItsOwnNeedsNoLink) {
  EXPECT_EQ(explain(machine({gpu(0, 0, 18)}), 13000), "");
  EXPECT_EQ(explain(machine({gpu(0, 18, 0)}), 13000), "");
  EXPECT_NE(explain(machine({gpu(0, 0, 18), gpu(0, 0, 18)}), 13000), "");
}

TEST(PlatformTest, OldGpusAndDriversAreRefused) {
  EXPECT_NE(explain(machine({gpu(12, 0, 0, 8)}), 13000).find("8.0"), std::string::npos);
  EXPECT_NE(explain(machine({}), 13000), "");
  EXPECT_NE(explain(machine({gpu(18, 0, 0)}), 13020).find("13.0"), std::string::npos);
  PlatformFacts nothing;
  nothing.unavailable = "no driver";
  EXPECT_EQ(explain(nothing, 13000), "no driver");
}

TEST(PlatformTest, ReadingAMachineWithoutADriverIsNoError) {
  const PlatformFacts facts = read_platform();
  EXPECT_TRUE(!facts.unavailable.empty() || facts.cuda_driver_version > 0);
}

}  // namespace
}  // namespace moe_ep::cuda
