// Which handles a group uses.
#include "cuda/group_devices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moe_ep::cuda {
namespace {

DeviceFacts facts(const char* host, const char* why_no_fabric, int fixed_kind = -1) {
  DeviceFacts made;
  made.host = host;
  made.why_no_fabric = why_no_fabric;
  made.fixed_kind = fixed_kind;
  return made;
}

constexpr int kMadeForFd = static_cast<int>(HandleKind::kFd);
constexpr int kMadeForFabric = static_cast<int>(HandleKind::kFabric);

TEST(GroupDevicesTest, OneRankWithoutFabricDecidesOnAHost) {
  EXPECT_EQ(choose_kind({facts("a", ""), facts("a", "")}), HandleKind::kFabric);
  EXPECT_EQ(choose_kind({facts("a", ""), facts("a", "no channel")}), HandleKind::kFd);
  EXPECT_EQ(choose_kind({facts("a", "", kMadeForFabric), facts("a", "", kMadeForFd)}),
            HandleKind::kFd);
}

TEST(GroupDevicesTest, MemoryThatIsThereNeedsNoNewTrial) {
  EXPECT_EQ(choose_kind({facts("a", "out of memory", kMadeForFabric), facts("b", "")}),
            HandleKind::kFabric);
}

TEST(GroupDevicesTest, HostsThatCannotShareAreToldWho) {
  const auto text = [](const DeviceFacts& other) -> std::string {
    try {
      choose_kind({facts("a", ""), other});
    } catch (const MoEEpError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(text(facts("b", "no channel")), ::testing::HasSubstr("got rank 1: no channel"));
  EXPECT_THAT(text(facts("b", "", kMadeForFd)), ::testing::HasSubstr("got rank 1: its memory"));
}

TEST(GroupDevicesTest, FactsArriveAsTheyWereSent) {
  DeviceFacts sent = facts("host with spaces", "", kMadeForFabric);
  sent.uuid = "GPU-1";
  sent.bytes = 1;
  sent.granularity = 2;
  sent.id = ~std::uint64_t{0};
  const DeviceFacts got = DeviceFacts::decode(sent.encode());
  EXPECT_EQ(got.host, sent.host);
  EXPECT_EQ(got.uuid, sent.uuid);
  EXPECT_EQ(got.why_no_fabric, "");
  EXPECT_EQ(got.bytes, 1u);
  EXPECT_EQ(got.granularity, 2u);
  EXPECT_EQ(got.fixed_kind, kMadeForFabric);
  EXPECT_EQ(got.id, sent.id);
  EXPECT_THROW(DeviceFacts::decode("host\nuuid\n\n7"), MoEEpError);
}

}  // namespace
}  // namespace moe_ep::cuda
