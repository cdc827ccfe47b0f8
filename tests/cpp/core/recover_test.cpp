// recover() and rejoin(): who takes part, in which epoch, and what becomes of other instances. What
// follows a time-out is in conformance/failures_test.cpp.
#include <moe_ep/host.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/layout.hpp"
#include "support/host_suite_backend.hpp"

namespace moe_ep {
namespace {

using namespace testing;
using ::testing::HasSubstr;

const HostSuiteBackend kBackend("host", RankKind::kThreads);
const GroupStep kStep = random_step(1, 3, 6, 2, 64, 6);
const MoEEpCommParams kParams = {
    .num_experts = 6, .top_k = 2, .max_tokens_per_rank = 6, .hidden_size = 64};

HostAlltoAllConfig config_with(const std::shared_ptr<CommBackend>& comm, bool masks = true) {
  HostAlltoAllConfig config;
  config.comm_backend = comm;
  config.timeout_sec = 30;
  config.enable_rank_mask = masks;
  return config;
}

std::unique_ptr<HostAlltoAll> make(int rank, const std::shared_ptr<CommBackend>& comm,
                                   bool masks = true) {
  return std::make_unique<HostAlltoAll>(BootstrapConfig{.world_size = 3, .rank = rank}, kParams,
                                        config_with(comm, masks));
}

void run(int num_ranks, const RankBody& body) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, num_ranks, body)));
}

TEST(RecoverTest, MayBeCalledBetweenHealthySteps) {
  run(3, [](int rank, const auto& world) {
    const auto comm = make(rank, world);
    for (int round = 0; round < 5; ++round) {
      run_step(kBackend, *comm, kStep);
      comm->recover({0, 1, 2}, world);
    }
    run_step(kBackend, *comm, kStep);
  });
}

TEST(RecoverTest, SetsTheDefaultMaskAndEverybodyMayComeBack) {
  run(3, [](int rank, const auto& world) {
    const auto pair = world->split(rank == 0 ? 1 : 0, rank);
    const auto comm = make(rank, world);
    run_step(kBackend, *comm, kStep);
    world->barrier();  // a rank that is dropped in the middle of a step has no result of it
    if (rank != 0) {
      comm->recover({1, 2}, pair);
      GroupStep step = kStep;
      step.active.reset(0);
      for (int round = 0; round < 7; ++round)
        run_step(kBackend, *comm, step);
    }
    comm->recover({0, 1, 2}, world);  // rank 0's epoch is behind
    for (int round = 0; round < 3; ++round)
      run_step(kBackend, *comm, kStep);
  });
}

TEST(RecoverTest, RestartedRankRejoins) {
  for (int lost = 0; lost < 3; ++lost) {
    run(3, [&](int rank, const auto& world) {
      auto comm = make(rank, world);
      for (int round = 0; round < 5; ++round)
        run_step(kBackend, *comm, kStep);
      if (rank == lost) {
        comm.reset();
        comm = HostAlltoAll::rejoin({.world_size = 3, .rank = rank}, kParams, config_with(nullptr),
                                    {0, 1, 2}, world);
      } else {
        comm->recover({0, 1, 2}, world);
      }
      for (int round = 0; round < 5; ++round)
        run_step(kBackend, *comm, kStep);
    });
  }
}

TEST(RecoverTest, RankRejoinsAGroupThatIsNotWhole) {
  run(3, [](int rank, const auto& world) {
    const auto pair = world->split(rank == 1 ? 1 : 0, rank);
    auto comm = make(rank, world);
    run_step(kBackend, *comm, kStep);
    world->barrier();       // a rank that is dropped in the middle of a step has no result of it
    if (rank == 1) return;  // for good
    if (rank == 2) {
      comm.reset();
      comm = HostAlltoAll::rejoin({.world_size = 3, .rank = 2}, kParams, config_with(nullptr),
                                  {0, 2}, pair);
    } else {
      comm->recover({0, 2}, pair);
    }
    GroupStep step = kStep;
    step.active.reset(1);
    for (int round = 0; round < 5; ++round)
      run_step(kBackend, *comm, step);
  });
}

// The epoch is the latest of all members, whatever the wrap.
TEST(RecoverTest, EpochGoesOnFromTheLatestMember) {
  run(3, [](int rank, const auto& world) {
    const auto comm = make(rank, world);
    auto* header = reinterpret_cast<protocol::SliceHeader*>(comm->slice());
    header->epoch = rank == 1 ? 3u : 0xfffffff0u;  // rank 1 is past the wrap
    world->barrier();
    comm->recover({0, 1, 2}, world);
    EXPECT_EQ(header->epoch, 3u);
    run_step(kBackend, *comm, kStep);
    EXPECT_EQ(header->epoch, 4u);
  });
}

// FR-065: a class instance crosses the wrap.
TEST(RecoverTest, StepsAcrossTheWrapOfTheEpoch) {
  run(3, [](int rank, const auto& world) {
    const auto comm = make(rank, world);
    auto* header = reinterpret_cast<protocol::SliceHeader*>(comm->slice());
    for (const protocol::Epoch start : {0x7ffffff0u, 0xfffffff0u}) {
      header->epoch = start;
      world->barrier();
      comm->recover({0, 1, 2}, world);
      for (int round = 0; round < 40; ++round)
        run_step(kBackend, *comm, kStep);
    }
    EXPECT_EQ(header->epoch, 0xfffffff0u + 40);
  });
}

template <class Error, class Call>
void expect_error(Call&& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error: " << text;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(RecoverTest, DifferentActiveRanksAreRefusedOnEveryRank) {
  run(3, [](int rank, const auto& world) {
    const auto pair = world->split(rank == 2 ? 1 : 0, rank);
    const auto comm = make(rank, world);
    if (rank == 2) return;
    // Both lists have the own rank where the backend says.
    const std::vector<int> active = rank == 0 ? std::vector<int>{0, 2} : std::vector<int>{0, 1};
    expect_error<std::invalid_argument>([&] { comm->recover(active, pair); },
                                        "active_ranks must be the same on every rank");
    comm->recover({0, 1}, pair);
  });
}

TEST(RecoverTest, WrongActiveRanksAreRefusedOnEveryRank) {
  run(3, [](int rank, const auto& world) {
    const auto comm = make(rank, world);
    for (const std::vector<int>& bad :
         {std::vector<int>{0, 1, 1}, std::vector<int>{2, 1, 0}, std::vector<int>{0, 1, 3},
          std::vector<int>{-1, 1, 2}, std::vector<int>{}}) {
      expect_error<std::invalid_argument>(
          [&] { comm->recover(rank == 1 ? bad : std::vector<int>{0, 1, 2}, world); }, "rank 1");
    }
    comm->recover({0, 1, 2}, world);
    run_step(kBackend, *comm, kStep);
  });
}

// A restarted rank with wrong parameters must not leave the survivors waiting.
TEST(RecoverTest, WrongRejoinIsRefusedOnEveryRank) {
  struct Case {
    MoEEpCommParams params;
    HostAlltoAllConfig config;
    std::vector<int> active;
    std::string text;
  };
  std::vector<Case> cases(5, {kParams, config_with(nullptr), {0, 1, 2}, ""});
  cases[0].params.top_k = 0;
  cases[0].text = "top_k must be a positive";
  cases[1].config.timeout_sec = 0;
  cases[1].text = "timeout_sec must lie in";
  cases[2].params.hidden_size = 65;
  cases[2].text = "hidden_size must be the same on every rank";
  cases[3].active = {2, 1, 0};
  cases[3].text = "active_ranks must be ascending";
  cases[4].config.enable_rank_mask = false;
  cases[4].text = "enable_rank_mask must be the same on every rank";
  run(3, [&](int rank, const auto& world) {
    auto comm = make(rank, world);
    if (rank == 2) comm.reset();
    const auto attempt = [&](const Case& c) {
      if (rank == 2) {
        comm =
            HostAlltoAll::rejoin({.world_size = 3, .rank = 2}, c.params, c.config, c.active, world);
      } else {
        comm->recover({0, 1, 2}, world);
      }
    };
    for (const Case& c : cases) {
      expect_error<std::invalid_argument>([&] { attempt(c); }, c.text);
    }
    attempt({kParams, config_with(nullptr), {0, 1, 2}, ""});
    run_step(kBackend, *comm, kStep);
  });
}

TEST(RecoverTest, MissingBackendIsRefused) {
  HostAlltoAll comm({}, {.num_experts = 2, .top_k = 1, .max_tokens_per_rank = 2, .hidden_size = 4});
  EXPECT_THROW(comm.recover({0}, nullptr), std::invalid_argument);
  comm.checkpoint_prepare();
  EXPECT_THROW(comm.checkpoint_restore(nullptr), std::invalid_argument);
  EXPECT_THROW(HostAlltoAll::rejoin({}, comm.params(), {}, {0}, nullptr), std::invalid_argument);
}

// The instance keeps the new backend for later collectives, which span the ranks that are left.
TEST(RecoverTest, LaterCheckpointsSpanTheActiveRanks) {
  run(3, [](int rank, const auto& world) {
    const auto pair = world->split(rank == 0 ? 1 : 0, rank);
    const auto fresh = world->split(rank == 0 ? 1 : 0, rank);
    const auto comm = make(rank, world);
    if (rank == 0) return;
    comm->recover({1, 2}, pair);
    comm->checkpoint_prepare();
    expect_error<std::logic_error>([&] { comm->checkpoint_restore(world); },
                                   "checkpoint_restore: comm_backend must have rank " +
                                       std::to_string(rank - 1) + " of 2, got rank " +
                                       std::to_string(rank) + " of 3");
    comm->checkpoint_restore(fresh);
    GroupStep step = kStep;
    step.active.reset(0);
    run_step(kBackend, *comm, step);
  });
}

}  // namespace
}  // namespace moe_ep
