// Instances of one group with one layout share a workspace; their rounds take turns.
#include <moe_ep/host.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/host_suite_backend.hpp"

namespace moe_ep {
namespace {

using namespace testing;
using ::testing::HasSubstr;

const HostSuiteBackend kBackend("host", RankKind::kThreads);

MoEEpCommParams params_for(const GroupStep& step) {
  return {.num_experts = step.num_experts,
          .top_k = step.top_k,
          .max_tokens_per_rank = step.tokens_per_rank,
          .hidden_size = step.hidden};
}

std::unique_ptr<HostAlltoAll> make(int rank, const std::shared_ptr<CommBackend>& comm,
                                   const GroupStep& step, HostAlltoAllConfig config = {}) {
  config.comm_backend = comm;
  config.timeout_sec = 30;
  return std::make_unique<HostAlltoAll>(
      BootstrapConfig{.world_size = comm->get_size(), .rank = rank}, params_for(step), config);
}

void run(int num_ranks, const RankBody& body) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, num_ranks, body)));
}

TEST(SharingTest, EqualLayoutsOfAGroupShare) {
  const GroupStep step = random_step(1, 2, 4, 2, 32, 4);
  run(2, [&](int rank, const auto& comm) {
    const auto a = make(rank, comm, step);
    const auto b = make(rank, comm, step);
    EXPECT_EQ(a->slice(), b->slice());
    for (int round = 0; round < 5; ++round) {
      run_step(kBackend, *a, step);
      run_step(kBackend, *b, step);
    }
  });
}

TEST(SharingTest, WhatDiffersInLayoutDoesNotShare) {
  const GroupStep step = random_step(2, 2, 4, 2, 32, 4);
  run(2, [&](int rank, const auto& comm) {
    const auto base = make(rank, comm, step);
    for (int change = 0; change < 4; ++change) {
      GroupStep other = step;
      HostAlltoAllConfig config;
      if (change == 0) other.tokens_per_rank += 1;
      if (change == 1) other.hidden += 8;
      if (change == 2) config.extra_payload_bytes_per_token = 128;
      if (change == 3) config.eplb_stats_num_experts = 4;
      EXPECT_NE(make(rank, comm, other, config)->slice(), base->slice()) << change;
    }
  });
}

TEST(SharingTest, DispatchDuringAnotherInstancesRoundIsRefused) {
  const GroupStep step = random_step(3, 2, 4, 2, 32, 4);
  run(2, [&](int rank, const auto& comm) {
    const auto a = make(rank, comm, step);
    const auto b = make(rank, comm, step);
    StepRunner round(kBackend, *a, step);
    round.dispatch();
    try {
      StepRunner(kBackend, *b, step).send();
      ADD_FAILURE() << "rounds overlap";
    } catch (const std::logic_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("while another instance's round is open"));
      EXPECT_THAT(error.what(), HasSubstr("share_workspace=False"));
    }
    EXPECT_THROW(b->get_combine_input_buffer(kBFloat16), std::logic_error);
    EXPECT_THROW(b->checkpoint_prepare(), std::logic_error);
    round.check_received();
    round.combine();
    run_step(kBackend, *b, step);
  });
}

TEST(SharingTest, RoundsOfUnsharedInstancesOverlap) {
  const GroupStep step = random_step(4, 2, 4, 2, 32, 4);
  run(2, [&](int rank, const auto& comm) {
    HostAlltoAllConfig own;
    own.share_workspace = false;
    const auto a = make(rank, comm, step, own);
    const auto b = make(rank, comm, step, own);
    EXPECT_NE(a->slice(), b->slice());
    StepRunner first(kBackend, *a, step);
    StepRunner second(kBackend, *b, step);
    first.dispatch();
    second.dispatch();
    first.check_received();
    first.combine();
    second.check_received();
    second.combine();
  });
}

TEST(SharingTest, UnsharedInstancesAreNotFoundByLaterOnes) {
  const GroupStep step = random_step(5, 2, 4, 2, 32, 4);
  run(2, [&](int rank, const auto& comm) {
    HostAlltoAllConfig own;
    own.share_workspace = false;
    const auto a = make(rank, comm, step, own);
    const auto b = make(rank, comm, step);
    const auto c = make(rank, comm, step);
    EXPECT_NE(a->slice(), b->slice());
    EXPECT_EQ(b->slice(), c->slice());
  });
}

TEST(SharingTest, LastInstanceFreesInWhateverOrder) {
  const GroupStep step = random_step(6, 2, 4, 2, 32, 4);
  run(2, [&](int rank, const auto& comm) {
    for (int order = 0; order < 6; ++order) {
      std::vector<std::unique_ptr<HostAlltoAll>> all;
      for (int i = 0; i < 3; ++i)
        all.push_back(make(rank, comm, step));
      const std::weak_ptr<const void> memory = all[0]->workspace_handle();
      const int first = order / 2;
      const int second = (first + 1 + order % 2) % 3;
      const int last = 3 - first - second;
      all[static_cast<std::size_t>(first)]->destroy();
      run_step(kBackend, *all[static_cast<std::size_t>(second)], step);
      all[static_cast<std::size_t>(second)].reset();
      run_step(kBackend, *all[static_cast<std::size_t>(last)], step);
      EXPECT_FALSE(memory.expired());
      all[static_cast<std::size_t>(last)]->destroy();
      EXPECT_TRUE(memory.expired());
    }
  });
}

TEST(SharingTest, OneRanksLeftoverDoesNotMakeOthersShare) {
  const GroupStep step = random_step(7, 2, 4, 2, 32, 4);
  run(2, [&](int rank, const auto& comm) {
    auto a = make(rank, comm, step);
    if (rank == 0) a->destroy();  // rank 1's share lives on
    comm->barrier();
    const auto b = make(rank, comm, step);
    run_step(kBackend, *b, step);
    comm->barrier();
    const auto c = make(rank, comm, step);
    EXPECT_EQ(b->slice(), c->slice());
    run_step(kBackend, *c, step);
  });
}

TEST(SharingTest, FailureOfOneInstanceStopsAllOfTheWorkspaceUntilRecover) {
  const GroupStep step = random_step(8, 2, 4, 2, 32, 4);
  run(2, [&](int rank, const auto& comm) {
    const auto a = make(rank, comm, step);
    const auto b = make(rank, comm, step);
    StepOptions options;
    options.weights = rank == 0;
    EXPECT_THROW(StepRunner(kBackend, *a, step, options).send(), MoEEpMismatchError);
    EXPECT_THROW(StepRunner(kBackend, *b, step).send(), MoEEpError);
    EXPECT_THROW(b->check(), MoEEpMismatchError);
    // A new instance does not step into the broken workspace.
    const auto c = make(rank, comm, step);
    run_step(kBackend, *c, step);
    b->recover({0, 1}, comm);
    run_step(kBackend, *a, step);
    run_step(kBackend, *b, step);
  });
}

// recover() of one instance ends the round that another one had open: its rows are gone.
TEST(SharingTest, RecoverEndsOpenRoundsOfOtherInstances) {
  const GroupStep step = random_step(9, 2, 4, 2, 32, 4);
  run(2, [&](int rank, const auto& comm) {
    const auto a = make(rank, comm, step);
    const auto b = make(rank, comm, step);
    StepRunner round(kBackend, *a, step);
    round.dispatch();
    b->recover({0, 1}, comm);
    EXPECT_THROW(a->num_local_tokens(), std::logic_error);
    EXPECT_THROW(a->get_combine_input_buffer(kBFloat16), std::logic_error);
    Tensor rows(kBackend, kBFloat16, 8, 32);
    Tensor output(kBackend, kBFloat16, step.num_tokens[static_cast<std::size_t>(rank)], 32);
    EXPECT_THROW(a->combine(rows.view(), output.view()), std::logic_error);
    run_step(kBackend, *b, step);
    run_step(kBackend, *a, step);
  });
}

// A rank that abandons a round and goes on at once must not touch what a slower one still marks:
// rank 0 has 2 x 16384 rows to mark as empty, rank 1 none, and rank 1's next row lies at their end.
TEST(SharingTest, StepAfterAnAbandonedRoundWaitsForSlowRanks) {
  constexpr std::int64_t kTokens = 16384;
  constexpr std::int64_t kTopK = 8;
  GroupStep step = random_step(11, 2, 16, kTopK, 1, kTokens);
  run(2, [&](int rank, const auto& comm) {
    const std::vector<std::uint16_t> hidden(kTokens);
    const std::vector<std::int32_t> to_rank1(kTokens * kTopK, 8);
    const std::vector<std::int32_t> to_rank0(kTopK, 3);
    const auto inputs = [&](const std::vector<std::int32_t>& ids) {
      const auto count = static_cast<std::int64_t>(ids.size()) / kTopK;
      DispatchInputs result;
      result.hidden_states =
          TensorView(const_cast<std::uint16_t*>(hidden.data()), kBFloat16, {count, 1});
      result.topk_ids = TensorView(const_cast<std::int32_t*>(ids.data()), kInt32, {count, kTopK});
      return result;
    };
    const auto stays = make(rank, comm, step);
    for (int round = 0; round < 100; ++round) {
      const auto goes = make(rank, comm, step);
      goes->dispatch(inputs(to_rank1));
      goes->destroy();
      const auto received = stays->dispatch(inputs(to_rank0));
      const auto* ids = static_cast<const std::int32_t*>(received.topk_ids.data);
      for (std::int64_t src = 0; src < 2; ++src) {
        const std::int32_t want = rank == 0 ? 3 : -1;
        for (std::int64_t k = 0; k < kTopK; ++k) {
          check(ids[src * kTokens * kTopK + k] == want,
                "an id was lost in round " + std::to_string(round));
        }
      }
      std::uint16_t output = 0;
      stays->combine(stays->get_combine_input_buffer(kBFloat16),
                     TensorView(&output, kBFloat16, {1, 1}));
    }
  });
}

// A rank that took part in the abandoned round and has gone since is not waited for.
TEST(SharingTest, RankThatLeftAfterAnAbandonedRoundIsNotWaitedFor) {
  const GroupStep step = random_step(13, 3, 6, 2, 32, 4);
  run(3, [&](int rank, const auto& comm) {
    HostAlltoAllConfig config;
    config.enable_rank_mask = true;
    const auto stays = make(rank, comm, step, config);
    const auto goes = make(rank, comm, step, config);
    StepRunner(kBackend, *goes, step).send();
    goes->destroy();
    if (rank == 1) return;
    stays->set_active_ranks({0, 2});
    GroupStep rest = step;
    rest.active.reset(1);
    run_step(kBackend, *stays, rest);
  });
}

// Who abandons a round that others finish is told so, and so are they.
TEST(SharingTest, RoundThatOnlySomeAbandonIsAMismatch) {
  const GroupStep step = random_step(12, 2, 4, 2, 32, 4);
  run(2, [&](int rank, const auto& comm) {
    const auto stays = make(rank, comm, step);
    const auto goes = make(rank, comm, step);
    StepRunner round(kBackend, *goes, step);
    round.send();
    try {
      if (rank == 0) goes->destroy();
      if (rank == 0) StepRunner(kBackend, *stays, step).send();
      if (rank == 1) round.combine();
      ADD_FAILURE() << "rank " << rank << " noticed nothing";
    } catch (const MoEEpMismatchError& error) {
      EXPECT_THAT(error.what(), HasSubstr("bytes of a combine row must be the same on every rank"));
      EXPECT_THAT(error.what(), HasSubstr("an abandoned round"));
    }
    stays->recover({0, 1}, comm);
    run_step(kBackend, *stays, step);
  });
}

// Two groups of equal size in one process.
TEST(SharingTest, GroupsDoNotShare) {
  const GroupStep step = random_step(10, 2, 4, 2, 32, 4);
  run(2, [&](int rank, const auto& comm) {
    const auto other = comm->split(0, rank);
    const auto a = make(rank, comm, step);
    const auto b = make(rank, other, step);
    EXPECT_NE(a->slice(), b->slice());
    run_step(kBackend, *a, step);
    run_step(kBackend, *b, step);
  });
}

}  // namespace
}  // namespace moe_ep
