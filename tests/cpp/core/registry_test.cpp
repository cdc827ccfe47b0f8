// Backends by name.
#include <moe_ep/host.hpp>
#include <moe_ep/nvlink.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/spawn_ranks.hpp"

namespace moe_ep {
namespace {

using testing::all_ok;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::RankKind;
using testing::spawn_ranks;

const MoEEpCommParams kParams = {
    .num_experts = 4, .top_k = 2, .max_tokens_per_rank = 4, .hidden_size = 8};

TEST(RegistryTest, KnowsTheBuiltInBackends) {
  const auto names = available_communication_backends();
  for (const char* name : {"host", "nvlink_one_sided", "nvlink_two_sided", "cake"}) {
    EXPECT_THAT(names, Contains(name));
  }
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
}

TEST(RegistryTest, UnknownNamesListTheKnownOnes) {
  try {
    create_communication({}, kParams, "nvlonk");
    ADD_FAILURE() << "was made";
  } catch (const std::out_of_range& error) {
    EXPECT_THAT(error.what(), HasSubstr("got nvlonk"));
    for (const std::string& name : available_communication_backends()) {
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }
}

TEST(RegistryTest, MakesABackendByNameAndByConfig) {
  EXPECT_STREQ(create_communication({}, kParams, "host")->backend_name(), "host");
  EXPECT_STREQ(create_communication({}, kParams, HostAlltoAllConfig{})->backend_name(), "host");
}

#if !defined(MOE_EP_HAS_CUDA)
// FR-167.
TEST(RegistryTest, AutoNeverPicksWhatCannotRun) {
  EXPECT_TRUE(all_ok(
      spawn_ranks(RankKind::kThreads, 2, [](int rank, const std::shared_ptr<CommBackend>& comm) {
        const auto made =
            create_communication({.world_size = 2, .rank = rank}, kParams, "auto", comm);
        EXPECT_STREQ(made->backend_name(), "host");
      })));
  for (const char* name : {"nvlink_one_sided", "nvlink_two_sided", "cake"}) {
    EXPECT_THROW(create_communication({}, kParams, name), MoEEpError) << name;
  }
}
#endif

TEST(RegistryTest, TakesFactoriesUnderNewNamesOnce) {
  int num_calls = 0;
  register_communication("registry_test",
                         [&](const BootstrapConfig& bootstrap, const MoEEpCommParams& params,
                             std::shared_ptr<CommBackend>) {
                           ++num_calls;
                           return std::make_unique<HostAlltoAll>(bootstrap, params);
                         });
  EXPECT_THAT(available_communication_backends(), Contains("registry_test"));
  EXPECT_STREQ(create_communication({}, kParams, "registry_test")->backend_name(), "host");
  EXPECT_EQ(num_calls, 1);
  for (const char* name : {"registry_test", "host", "auto", ""}) {
    EXPECT_THROW(register_communication(name, {}), std::invalid_argument) << name;
  }
}

TEST(RegistryTest, WrongBootstrapIsRefusedFirst) {
  EXPECT_THROW(create_communication({.world_size = 0}, kParams, "host"), std::invalid_argument);
}

}  // namespace
}  // namespace moe_ep
