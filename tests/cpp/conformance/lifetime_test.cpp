// Instances come and go: in any order, in the middle of rounds, many times (FIELD.md, LIFE).
#include <sched.h>

#include <gmock/gmock.h>

#include "conformance/backend_suite.hpp"
#include "support/resources.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::HasSubstr;

// What the process holds when every rank stands still. Looking takes a descriptor, so of several
// threads one looks.
Resources resources_at_rest(CommBackend& group, bool one_process) {
  Resources now;
  group.barrier();
  if (!one_process || group.get_rank() == 0) now = Resources::now();
  group.barrier();
  return now;
}

// FR-134.
TEST_P(BackendSuite, FiftyInstancesLeaveNothingBehind) {
  const GroupStep step = random_step(1, 3, 6, 2, 64, 8);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    {
      const auto comm = make(rank, group, params_for(step));
      run_step(backend(), *comm, step);
    }
    const Resources before = resources_at_rest(*group, in_threads());
    group->barrier();
    const std::size_t space = virtual_bytes();
    for (std::uint64_t round = 0; round < backend().rounds(50); ++round) {
      const auto comm = make(rank, group, params_for(step));
      if (round % 10 == 0) run_step(backend(), *comm, step);
      if (round % 3 == 0) comm->destroy();
    }
    EXPECT_EQ(before, resources_at_rest(*group, in_threads()));
    if (!in_threads()) {
      EXPECT_LE(virtual_bytes(), space + (1u << 20));
    }
    group->barrier();
  });
}

// FR-112, FR-018: whatever a construction had got hold of is given back on every rank.
TEST_P(BackendSuite, FailedConstructionsLeaveNothingBehind) {
  const GroupStep step = random_step(2, 3, 6, 2, 64, 8);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto fail_once = [&] {
      MoEEpCommParams params = params_for(step);
      if (rank == 1) params.max_tokens_per_rank += 1;
      EXPECT_THROW(make(rank, group, params), std::invalid_argument);
    };
    fail_once();
    const Resources before = resources_at_rest(*group, in_threads());
    for (int attempt = 0; attempt < 20; ++attempt)
      fail_once();
    EXPECT_EQ(before, resources_at_rest(*group, in_threads()));
    const auto comm = make(rank, group, params_for(step));
    run_step(backend(), *comm, step);
  });
}

TEST_P(BackendSuite, FailedStepsLeaveNothingBehind) {
  const GroupStep step = random_step(3, 2, 4, 2, 64, 8);
  run(2, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto fail_once = [&] {
      const auto comm = make(rank, group, params_for(step));
      StepOptions options;
      options.weights = rank == 0;
      EXPECT_THROW(StepRunner(backend(), *comm, step, options).attempt(), MoEEpMismatchError);
    };
    fail_once();
    const Resources before = resources_at_rest(*group, in_threads());
    for (int round = 0; round < 10; ++round)
      fail_once();
    EXPECT_EQ(before, resources_at_rest(*group, in_threads()));
  });
}

TEST_P(BackendSuite, DestroyedInstancesRefuseEveryCall) {
  const GroupStep step = random_step(4, 1, 2, 2, 16, 2);
  run(1, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto comm = make(rank, group, params_for(step));
    run_step(backend(), *comm, step);
    comm->destroy();
    comm->destroy();
    EXPECT_EQ(comm->slice(), nullptr);
    EXPECT_EQ(comm->workspace_handle(), nullptr);
    const auto text_of = [](auto&& call) -> std::string {
      try {
        call();
      } catch (const std::logic_error& error) {
        return error.what();
      }
      return "taken";
    };
    Tensor tensor(backend(), kBFloat16, 2, 16);
    EXPECT_EQ(text_of([&] { StepRunner(backend(), *comm, step).send(); }),
              "dispatch: the instance must not be destroyed, got a call after destroy()");
    EXPECT_EQ(text_of([&] { comm->combine(tensor.view(), tensor.view()); }),
              "combine: the instance must not be destroyed, got a call after destroy()");
    for (const auto& text :
         {text_of([&] { comm->get_combine_input_buffer(kBFloat16); }),
          text_of([&] { comm->check(); }), text_of([&] { comm->synchronize(); }),
          text_of([&] { comm->set_active_ranks({0}); }),
          text_of([&] { comm->recover({0}, group); }), text_of([&] { comm->checkpoint_prepare(); }),
          text_of([&] { comm->checkpoint_restore(group); })}) {
      EXPECT_THAT(text, HasSubstr("after destroy()"));
    }
    EXPECT_THROW(comm->num_local_tokens(), std::logic_error);
    // What it knew it still says.
    EXPECT_EQ(comm->params().hidden_size, 16);
    EXPECT_GT(comm->workspace_bytes(), 0);
  });
}

// FR-070: wrong nesting is an error, not a deadlock.
TEST_P(BackendSuite, WrongNestingIsRefused) {
  const GroupStep step = random_step(5, 2, 4, 2, 16, 3);
  run_instances(2, params_for(step), {}, [&](MoEEpCommunication& comm, int) {
    Tensor output(backend(), kBFloat16, 0, 16);
    const auto text_of = [](auto&& call) -> std::string {
      try {
        call();
      } catch (const std::logic_error& error) {
        return error.what();
      }
      return "taken";
    };
    EXPECT_EQ(text_of([&] { comm.combine(output.view(), output.view()); }),
              "combine: a dispatch must come first, got no open round");
    EXPECT_EQ(text_of([&] { comm.get_combine_input_buffer(kBFloat16); }),
              "get_combine_input_buffer: a dispatch must come first, got no open round");
    EXPECT_EQ(comm.last_transport(), std::nullopt);
    StepRunner runner(backend(), comm, step);
    runner.dispatch();
    EXPECT_NE(comm.last_transport(), std::nullopt);
    EXPECT_EQ(text_of([&] { StepRunner(backend(), comm, step).send(); }),
              "dispatch: the last round must be combined first, got a second dispatch");
    EXPECT_THAT(text_of([&] { comm.checkpoint_prepare(); }), HasSubstr("no round may be open"));
    EXPECT_THAT(text_of([&] { comm.set_active_ranks({0, 1}); }), HasSubstr("no round may be open"));
    runner.check_received();
    runner.combine();
    EXPECT_EQ(text_of([&] { comm.combine(output.view(), output.view()); }),
              "combine: a dispatch must come first, got no open round");
    run_step(backend(), comm, step);
  });
}

// FR-135: a rank goes as soon as it is done, while peers still read its rows.
TEST_P(BackendSuite, RanksMayDestroyWhilePeersAreStillInTheirLastCombine) {
  const GroupStep step = random_step(6, 4, 8, 4, 200, 20);
  for (std::uint64_t round = 0; round < backend().rounds(20); ++round) {
    run_instances(4, params_for(step), {}, [&](MoEEpCommunication& comm, int rank) {
      StepRunner runner(backend(), comm, step);
      runner.dispatch();
      for (int i = 0; rank == static_cast<int>(round % 4) && i < 50; ++i)
        ::sched_yield();
      runner.combine();
      comm.destroy();
    });
  }
}

TEST_P(BackendSuite, HandlesKeepReceivedViewsAlive) {
  const GroupStep step = random_step(7, 2, 4, 2, 16, 3);
  run(2, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    auto comm = make(rank, group, params_for(step));
    StepRunner runner(backend(), *comm, step);
    runner.dispatch();
    const auto handle = comm->workspace_handle();
    group->barrier();
    comm->destroy();
    group->barrier();
    runner.check_received();
  });
}

// An instance that goes away within its round leaves the shared workspace to the others.
TEST_P(BackendSuite, AbandonedRoundsLeaveASharedWorkspaceUsable) {
  for (const int num_ranks : {1, 2, 4}) {
    const GroupStep step = random_step(8, num_ranks, 4 * num_ranks, 3, 24, 8);
    run(num_ranks, [&](int rank, const std::shared_ptr<CommBackend>& group) {
      const auto stays = make(rank, group, params_for(step));
      for (std::uint64_t round = 0; round < backend().rounds(40); ++round) {
        const auto goes = make(rank, group, params_for(step));
        check(stays->slice() == goes->slice(), "equal layouts do not share a workspace");
        StepRunner abandoned(backend(), *goes, step);
        abandoned.send();
        goes->destroy();
        // A fast rank is in its next step while a slow one still accepts the abandoned one.
        for (std::uint64_t i = 0; i < mix(round, static_cast<std::uint64_t>(rank)) % 8; ++i) {
          ::sched_yield();
        }
        run_step(backend(), *stays, random_step(100 + round, num_ranks, 4 * num_ranks, 3, 24, 8));
      }
    });
  }
}

}  // namespace
}  // namespace moe_ep::testing
