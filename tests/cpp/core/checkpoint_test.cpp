// Giving the memory back and taking new one at the old addresses.
#include <moe_ep/host.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/host_suite_backend.hpp"
#include "support/resources.hpp"

namespace moe_ep {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::Values;

const HostSuiteBackend kThreads("threads", RankKind::kThreads);

class CheckpointTest : public ::testing::TestWithParam<RankKind> {
 protected:
  void run(int num_ranks, const RankBody& body) {
    EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), num_ranks, body)));
  }
};

const GroupStep kStep = random_step(1, 3, 6, 2, 64, 6);

std::unique_ptr<HostAlltoAll> make(int rank, const std::shared_ptr<CommBackend>& comm) {
  HostAlltoAllConfig config;
  config.comm_backend = comm;
  config.timeout_sec = 30;
  return std::make_unique<HostAlltoAll>(
      BootstrapConfig{.world_size = 3, .rank = rank},
      MoEEpCommParams{.num_experts = 6, .top_k = 2, .max_tokens_per_rank = 6, .hidden_size = 64},
      config);
}

TEST_P(CheckpointTest, StepsGoOnAtTheOldAddresses) {
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& world) {
    const auto comm = make(rank, world);
    std::byte* const slice = comm->slice();
    for (int round = 0; round < 3; ++round) {
      run_step(kThreads, *comm, kStep);
      comm->checkpoint_prepare();
      EXPECT_EQ(comm->slice(), slice);
      EXPECT_EQ(access_at(slice).substr(0, 3), "---");
      world->barrier();
      comm->checkpoint_restore(world->split(0, rank));
      EXPECT_EQ(comm->slice(), slice);
      EXPECT_EQ(access_at(slice).substr(0, 2), "rw");
    }
    run_step(kThreads, *comm, kStep);
  });
}

TEST_P(CheckpointTest, BothAreNoOpsWhenAlreadyThere) {
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& world) {
    const auto comm = make(rank, world);
    if (rank == 0) comm->checkpoint_restore(world);  // mapped: not collective
    comm->checkpoint_prepare();
    if (rank == 1) comm->checkpoint_prepare();
    world->barrier();
    comm->checkpoint_restore(world);
    run_step(kThreads, *comm, kStep);
  });
}

TEST_P(CheckpointTest, CallsInBetweenAreRefused) {
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& world) {
    const auto comm = make(rank, world);
    comm->checkpoint_prepare();
    const auto text_of = [](auto&& call) -> std::string {
      try {
        call();
      } catch (const std::logic_error& error) {
        return error.what();
      }
      return "taken";
    };
    const std::string text =
        "the workspace must be mapped, got a call between checkpoint_prepare()";
    EXPECT_THAT(text_of([&] { StepRunner(kThreads, *comm, kStep).send(); }), HasSubstr(text));
    EXPECT_THAT(text_of([&] { comm->get_combine_input_buffer(kBFloat16); }), HasSubstr(text));
    EXPECT_THAT(text_of([&] { comm->set_active_ranks({0, 1, 2}); }), HasSubstr(text));
    EXPECT_THAT(text_of([&] { comm->recover({0, 1, 2}, world); }), HasSubstr("checkpoint_prepare"));
    world->barrier();
    comm->checkpoint_restore(world);
    run_step(kThreads, *comm, kStep);
  });
}

TEST_P(CheckpointTest, NeitherMayHappenWithinARound) {
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& world) {
    const auto comm = make(rank, world);
    StepRunner round(kThreads, *comm, kStep);
    round.dispatch();
    EXPECT_THROW(comm->checkpoint_prepare(), std::logic_error);
    EXPECT_THROW(comm->checkpoint_restore(world), std::logic_error);
    round.check_received();
    round.combine();
  });
}

TEST_P(CheckpointTest, AnotherRankOrSizeIsRefused) {
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& world) {
    const auto comm = make(rank, world);
    const auto reversed = world->split(0, -rank);
    const auto alone = world->split(rank, 0);
    comm->checkpoint_prepare();
    if (rank != 1) {
      EXPECT_THROW(comm->checkpoint_restore(reversed), std::logic_error);
    }
    EXPECT_THROW(comm->checkpoint_restore(alone), std::logic_error);
    world->barrier();
    comm->checkpoint_restore(world);
    run_step(kThreads, *comm, kStep);
  });
}

// Sharing instances share the checkpoint.
TEST_P(CheckpointTest, InstancesOfOneWorkspaceCheckpointTogether) {
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& world) {
    const auto a = make(rank, world);
    const auto b = make(rank, world);
    a->checkpoint_prepare();
    b->checkpoint_prepare();
    EXPECT_THROW(StepRunner(kThreads, *b, kStep).send(), std::logic_error);
    b->checkpoint_restore(world);
    a->checkpoint_restore(world);
    run_step(kThreads, *a, kStep);
    run_step(kThreads, *b, kStep);
  });
}

// A workspace that waits for its restore is not one that new instances can share.
TEST_P(CheckpointTest, InstanceMadeInBetweenHasItsOwnWorkspace) {
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& world) {
    const auto a = make(rank, world);
    a->checkpoint_prepare();
    const auto b = make(rank, world);
    EXPECT_NE(a->slice(), b->slice());
    run_step(kThreads, *b, kStep);
    world->barrier();
    a->checkpoint_restore(world);
    run_step(kThreads, *a, kStep);
    run_step(kThreads, *b, kStep);
  });
}

TEST_P(CheckpointTest, RestoreClearsAFailedStep) {
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& world) {
    const auto comm = make(rank, world);
    StepOptions options;
    options.weights = rank == 0;
    EXPECT_THROW(StepRunner(kThreads, *comm, kStep, options).send(), MoEEpMismatchError);
    comm->checkpoint_prepare();
    comm->checkpoint_restore(world);
    run_step(kThreads, *comm, kStep);
  });
}

// FR-138: nobody returns from prepare before everybody has let go of the memory.
TEST_P(CheckpointTest, PreparedMemoryIsGoneOnEveryRank) {
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& world) {
    auto comm = make(rank, world);
    run_step(kThreads, *comm, kStep);
    comm->checkpoint_prepare();
    EXPECT_EQ(Resources::now().num_shared_mappings, 0);
    world->barrier();
    comm->destroy();  // also possible without a restore
  });
}

#if defined(__SANITIZE_THREAD__)
INSTANTIATE_TEST_SUITE_P(Threads, CheckpointTest, Values(RankKind::kThreads));
#else
INSTANTIATE_TEST_SUITE_P(Threads, CheckpointTest, Values(RankKind::kThreads));
INSTANTIATE_TEST_SUITE_P(Processes, CheckpointTest, Values(RankKind::kProcesses));
#endif

}  // namespace
}  // namespace moe_ep
