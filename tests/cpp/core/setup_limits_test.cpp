// Set-up of the public class in a process that has run out of descriptors or address space: all
// ranks throw the same, nothing is left behind, and a later attempt works.
#include <gmock/gmock.h>
#include <moe_ep/host.hpp>

#include "support/host_suite_backend.hpp"
#include "support/limits.hpp"
#include "support/resources.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMaxSpare = 14;

const HostSuiteBackend kBackend("host", RankKind::kProcesses);
const GroupStep kStep = random_step(1, 3, 6, 2, 64, 6);
const MoEEpCommParams kParams = {
    .num_experts = 6, .top_k = 2, .max_tokens_per_rank = 6, .hidden_size = 64};

std::unique_ptr<HostAlltoAll> make(int rank, const std::shared_ptr<CommBackend>& comm,
                                   const MoEEpCommParams& params = kParams) {
  HostAlltoAllConfig config;
  config.comm_backend = comm;
  config.timeout_sec = 20;
  config.enable_rank_mask = true;
  return std::make_unique<HostAlltoAll>(BootstrapConfig{.world_size = 3, .rank = rank}, params,
                                        config);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// `call` with `spare` descriptors left on rank 1, for every number of them. All ranks see the same
// error or none; `undo` runs after a success.
void expect_alike(CommBackend& world, const std::function<void()>& call,
                  const std::function<void()>& undo) {
  int num_failures = 0;
  for (int spare = 0; spare < kMaxSpare; ++spare) {
    const Resources before = Resources::now();
    std::string error;
    {
      std::optional<ScopedFdLimit> limit;
      if (world.get_rank() == 1) limit.emplace(spare);
      error = error_of(call);
    }
    for (const std::string& other : world.allgather(error))
      EXPECT_EQ(other, error) << spare;
    if (error.empty()) {
      undo();
    } else {
      ++num_failures;
    }
    EXPECT_EQ(Resources::now(), before) << spare << ": " << error;
  }
  EXPECT_GT(num_failures, 2);
  EXPECT_LT(num_failures, kMaxSpare);
}

TEST(SetupLimitsTest, ConstructionWithoutDescriptorsFailsAlike) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kProcesses, 3, [](int rank, const auto& world) {
    std::unique_ptr<HostAlltoAll> comm;
    // Once without a limit: what a first call costs for good is no leak.
    make(rank, world);
    expect_alike(
        *world, [&] { comm = make(rank, world); },
        [&] {
          run_step(kBackend, *comm, kStep);
          world->barrier();
          comm.reset();
        });
  })));
}

TEST(SetupLimitsTest, RecoverWithoutDescriptorsFailsAlike) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kProcesses, 3, [](int rank, const auto& world) {
    const auto comm = make(rank, world);
    comm->recover({0, 1, 2}, world);
    expect_alike(
        *world, [&] { comm->recover({0, 1, 2}, world); },
        [&] { run_step(kBackend, *comm, kStep); });
    comm->recover({0, 1, 2}, world);
    run_step(kBackend, *comm, kStep);
    world->barrier();
  })));
}

TEST(SetupLimitsTest, RestoreWithoutDescriptorsFailsAlike) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kProcesses, 3, [](int rank, const auto& world) {
    const auto comm = make(rank, world);
    comm->checkpoint_prepare();
    expect_alike(
        *world, [&] { comm->checkpoint_restore(world); },
        [&] {
          run_step(kBackend, *comm, kStep);
          comm->checkpoint_prepare();
        });
    comm->checkpoint_restore(world);
    run_step(kBackend, *comm, kStep);
    world->barrier();
  })));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their shadows are vast
TEST(SetupLimitsTest, ConstructionWithoutAddressSpaceFailsAlike) {
  MoEEpCommParams large = kParams;
  large.max_tokens_per_rank = 1024;
  large.hidden_size = 4096;  // slices of tens of MB
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kProcesses, 3, [&](int rank, const auto& world) {
    for (int round = 0; round < 3; ++round) {
      const Resources before = Resources::now();
      {
        std::optional<ScopedAddressSpaceLimit> limit;
        if (rank == 1) limit.emplace(std::size_t{8} << 20);
        EXPECT_THAT(error_of([&] { make(rank, world, large); }),
                    AllOf(HasSubstr("rank 1"), HasSubstr("bytes of address space")));
      }
      EXPECT_EQ(Resources::now(), before);
    }
    const auto comm = make(rank, world, large);
    run_step(kBackend, *comm, random_step(1, 3, 6, 2, large.hidden_size, 6));
    world->barrier();
  })));
}
#endif

}  // namespace
}  // namespace moe_ep::testing
