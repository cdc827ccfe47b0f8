// Peers that do not come: errors in bounded time, and what may be done afterwards (FIELD.md, TIME).
#include <sched.h>

#include <chrono>

#include <gmock/gmock.h>

#include "conformance/backend_suite.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kShortSec = 1;

SuiteConfig short_timeout() {
  SuiteConfig config;
  config.timeout_sec = kShortSec;
  return config;
}

template <class Call>
void expect_timeout(const SuiteBackend& backend, Call&& call, const std::vector<int>& ranks,
                    Phase phase, const std::string& text) {
  const auto start = backend.now();
  try {
    call();
    ADD_FAILURE() << "did not time out: " << text;
  } catch (const MoEEpTimeoutError& error) {
    EXPECT_EQ(error.ranks(), ranks);
    EXPECT_EQ(error.phase(), phase);
    EXPECT_EQ(error.what(), text);
  }
  const auto took = backend.now() - start;
  EXPECT_GE(took, std::chrono::seconds(kShortSec));
  EXPECT_LT(took, std::chrono::seconds(kShortSec + 10));
}

// FR-097: nothing comes out of a failed instance.
void expect_refuses(const SuiteBackend& backend, MoEEpCommunication& comm, const GroupStep& step) {
  const auto text_of = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const MoEEpError& error) {
      return error.what();
    }
    return "taken";
  };
  Tensor output(backend, step.dtype, 0, step.hidden);
  EXPECT_THAT(text_of([&] { StepRunner(backend, comm, step).send(); }),
              StartsWith("dispatch: the instance must be recovered after a failed step"));
  EXPECT_THAT(text_of([&] { comm.combine(output.view(), output.view()); }),
              StartsWith("combine: the instance must be recovered after a failed step"));
  EXPECT_THAT(text_of([&] { comm.get_combine_input_buffer(step.dtype); }),
              StartsWith("get_combine_input_buffer: the instance must be recovered"));
  EXPECT_THROW(comm.check(), MoEEpTimeoutError);
  EXPECT_THROW(comm.synchronize(), MoEEpTimeoutError);
}

// FR-088, FR-089, FR-097.
TEST_P(BackendSuite, RankThatNeverDispatchesIsNamedByAllOthers) {
  const GroupStep step = random_step(1, 3, 6, 2, 16, 4);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto comm = make(rank, group, params_for(step), short_timeout());
    run_step(backend(), *comm, step);
    if (rank != 1) {
      expect_timeout(
          backend(), [&] { StepRunner(backend(), *comm, step).attempt(); }, {1}, Phase::kDispatch,
          "dispatch: every active rank must arrive within 1 s, got nothing from rank 1 "
          "(rank " +
              std::to_string(rank) + ", step 2)");
      expect_refuses(backend(), *comm, step);
    }
    comm->recover({0, 1, 2}, group);
    comm->check();
    for (int round = 0; round < 3; ++round)
      run_step(backend(), *comm, step);
  });
}

TEST_P(BackendSuite, RankThatNeverCombinesIsNamedByAllOthers) {
  const GroupStep step = random_step(2, 3, 6, 2, 16, 4);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto comm = make(rank, group, params_for(step), short_timeout());
    StepRunner runner(backend(), *comm, step);
    runner.dispatch();
    if (rank != 0) {
      expect_timeout(
          backend(), [&] { runner.combine(); }, {0}, Phase::kCombine,
          "combine: every active rank must arrive within 1 s, got nothing from rank 0 "
          "(rank " +
              std::to_string(rank) + ", step 1)");
      expect_refuses(backend(), *comm, step);
    }
    comm->recover({0, 1, 2}, group);  // ends rank 0's round
    EXPECT_THROW(comm->num_local_tokens(), std::logic_error);
    run_step(backend(), *comm, step);
  });
}

// A rank that comes when the others have given up must not go on with half a step either.
TEST_P(BackendSuite, LateRankFailsToo) {
  const GroupStep step = random_step(3, 3, 6, 2, 16, 4);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto comm = make(rank, group, params_for(step), short_timeout());
    if (rank != 2) {
      EXPECT_THROW(StepRunner(backend(), *comm, step).attempt(), MoEEpTimeoutError);
    }
    group->barrier();
    if (rank == 2) {
      StepRunner runner(backend(), *comm, step);
      runner.dispatch();  // everything had arrived
      try {
        runner.combine();
        ADD_FAILURE() << "a late rank combined alone";
      } catch (const MoEEpTimeoutError& error) {
        EXPECT_EQ(error.ranks(), (std::vector<int>{0, 1}));
        EXPECT_EQ(error.phase(), Phase::kCombine);
      }
    }
    comm->recover({0, 1, 2}, group);
    run_step(backend(), *comm, step);
  });
}

// FR-089, FR-091: the bound is the instance's own.
TEST_P(BackendSuite, LongerTimeoutOutlastsASlowPeer) {
  const GroupStep step = random_step(4, 2, 4, 2, 16, 4);
  SuiteConfig config;
  config.timeout_sec = 50;
  run_instances(2, params_for(step), config, [&](MoEEpCommunication& comm, int rank) {
    EXPECT_EQ(comm.timeout_sec(), 50);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1200);
    while (rank == 1 && std::chrono::steady_clock::now() < end)
      ::sched_yield();
    run_step(backend(), comm, step);
  });
}

TEST_P(BackendSuite, RecoverAfterAMismatch) {
  const GroupStep step = random_step(5, 2, 4, 2, 16, 4);
  run(2, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto comm = make(rank, group, params_for(step));
    for (int round = 0; round < 3; ++round) {
      StepOptions options;
      options.weights = rank == 0;
      EXPECT_THROW(StepRunner(backend(), *comm, step, options).attempt(), MoEEpMismatchError);
      comm->recover({0, 1}, group);
      run_step(backend(), *comm, step);
    }
  });
}

TEST_P(BackendSuite, RecoverGoesOnWithoutALostRank) {
  const GroupStep usual = random_step(6, 4, 8, 3, 16, 4);
  SuiteConfig config = short_timeout();
  config.enable_rank_mask = true;
  run(4, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto survivors = group->split(rank == 1 ? 1 : 0, rank);
    const auto comm = make(rank, group, params_for(usual), config);
    run_step(backend(), *comm, usual);
    group->barrier();  // a rank that is dropped in the middle of a step has no result of it
    if (rank == 1) return;
    EXPECT_THROW(StepRunner(backend(), *comm, usual).attempt(), MoEEpTimeoutError);
    comm->recover({0, 2, 3}, survivors);
    for (std::uint64_t seed = 7; seed < 12; ++seed) {
      GroupStep step = random_step(seed, 4, 8, 3, 16, 4);
      step.active.reset(1);
      run_step(backend(), *comm, step);  // the default mask is the survivors'
    }
  });
}

TEST_P(BackendSuite, RecoverIsRefusedAlikeOnEveryRank) {
  const GroupStep step = random_step(8, 3, 6, 2, 16, 4);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto pair = group->split(rank == 2 ? 1 : 0, rank);
    const auto comm = make(rank, group, params_for(step));  // without enable_rank_mask
    if (rank != 2) {
      EXPECT_THROW(comm->recover({0, 1}, pair), std::invalid_argument);
    }
    // One rank's mistake is everybody's error.
    try {
      comm->recover(rank == 1 ? std::vector<int>{0, 2, 1} : std::vector<int>{0, 1, 2}, group);
      ADD_FAILURE() << "ranks in disorder were taken";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
      EXPECT_THAT(error.what(), HasSubstr("active_ranks must be ascending"));
    }
    comm->recover({0, 1, 2}, group);
    run_step(backend(), *comm, step);
  });
}

}  // namespace
}  // namespace moe_ep::testing
