// Which device an instance takes, and which backend a group.
#include <thread>

#include <gmock/gmock.h>

#include "backend/platform.hpp"
#include "cuda_suite_backend.hpp"
#include "support/resources.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::HasSubstr;

TEST(CudaPlatformTest, TheDeviceIsTheCallersChoiceTheCurrentOneOrLocalRanks) {
  const auto device_of = [](std::optional<int> wanted, std::optional<int> current,
                            const char* local_rank, int rank) -> std::string {
    const ScopedEnv env("LOCAL_RANK", local_rank);
    std::string got;
    std::thread([&] {  // starts without a current device
      if (current) cudaSetDevice(*current);
      try {
        got = std::to_string(cuda_platform().choose_device(wanted, rank).index);
      } catch (const MoEEpError& error) {
        got = error.what();
      }
    })
        .join();
    return got;
  };
  EXPECT_EQ(device_of(3, 1, "2", 0), "3");
  EXPECT_EQ(device_of({}, 1, "2", 0), "1");
  EXPECT_EQ(device_of({}, {}, "2", 0), "2");
  EXPECT_EQ(device_of({}, {}, nullptr, 6), "2");
  EXPECT_THAT(device_of(4, {}, nullptr, 0), HasSubstr("one of the 4 visible GPUs, got 4"));
  EXPECT_THAT(device_of({}, {}, "4", 0), HasSubstr("LOCAL_RANK"));
  EXPECT_THAT(device_of({}, {}, "x", 0), HasSubstr("LOCAL_RANK"));
}

TEST(CudaPlatformTest, AutoTakesTheGpus) {
  EXPECT_TRUE(NVLinkOneSidedAlltoAll::is_platform_supported());
  EXPECT_TRUE(all_ok(
      spawn_ranks(RankKind::kThreads, 2, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
        const auto instance = create_communication(
            {.world_size = 2, .rank = rank},
            {.num_experts = 4, .top_k = 2, .max_tokens_per_rank = 4, .hidden_size = 16}, "auto",
            comm);
        EXPECT_STREQ(instance->backend_name(), "nvlink_one_sided");
        comm->barrier();
      })));
}

}  // namespace
}  // namespace moe_ep::testing
