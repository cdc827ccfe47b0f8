// Group ranks, sub-groups and several groups at once (FIELD.md, GROUP).
#include <gmock/gmock.h>

#include "conformance/backend_suite.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::HasSubstr;

// FR-143: {0, 1} and {2, 3}; {0, 2} and {1, 3}; both in reverse order.
TEST_P(BackendSuite, SubgroupsOfAnyMembersAndOrderWork) {
  const GroupStep shape = random_step(1, 2, 4, 2, 16, 4);
  for (const bool neighbours : {true, false}) {
    for (const bool reversed : {false, true}) {
      run(4, [&](int rank, const std::shared_ptr<CommBackend>& world) {
        const int color = neighbours ? rank / 2 : rank % 2;
        const auto group = world->split(color, reversed ? -rank : rank);
        check(group->get_size() == 2, "a group of another size");
        const auto comm = make(group->get_rank(), group, params_for(shape));
        for (std::uint64_t round = 0; round < backend().rounds(100); ++round) {
          run_step(backend(), *comm,
                   random_step(1000 * static_cast<std::uint64_t>(color) + round, 2, 4, 2, 16, 4));
        }
      });
    }
  }
}

// FR-145: equal sizes, different members, used in turns by one rank: nothing is shared.
TEST_P(BackendSuite, GroupsOfEqualSizesNeverShareAWorkspace) {
  const GroupStep shape = random_step(2, 2, 4, 2, 16, 4);
  run(4, [&](int rank, const std::shared_ptr<CommBackend>& world) {
    const auto pairs = world->split(rank / 2, rank);
    const auto stripes = world->split(rank % 2, rank);
    const auto a = make(pairs->get_rank(), pairs, params_for(shape));
    const auto b = make(stripes->get_rank(), stripes, params_for(shape));
    check(a->slice() != b->slice(), "different groups share a workspace");
    for (std::uint64_t round = 0; round < backend().rounds(30); ++round) {
      const auto seed = [&](int group) { return 100 * static_cast<std::uint64_t>(group) + round; };
      const GroupStep step_a = random_step(seed(1 + rank / 2), 2, 4, 2, 16, 4);
      const GroupStep step_b = random_step(seed(11 + rank % 2), 2, 4, 2, 16, 4);
      StepRunner first(backend(), *a, step_a);
      StepRunner second(backend(), *b, step_b);
      first.dispatch();
      second.dispatch();
      first.check_received();
      second.combine();
      first.combine();
    }
  });
}

// Two groups over the same ranks, their steps interleaved.
TEST_P(BackendSuite, IndependentGroupsInterleaveTheirSteps) {
  const GroupStep shape = random_step(3, 3, 6, 2, 16, 4);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& world) {
    const auto first = world->split(0, rank);
    const auto second = world->split(0, rank);
    const auto a = make(rank, first, params_for(shape));
    const auto b = make(rank, second, params_for(shape));
    for (std::uint64_t round = 0; round < backend().rounds(50); ++round) {
      const GroupStep step_a = random_step(2 * round, 3, 6, 2, 16, 4);
      const GroupStep step_b = random_step(2 * round + 1, 3, 6, 2, 16, 4);
      StepRunner runner_a(backend(), *a, step_a);
      StepRunner runner_b(backend(), *b, step_b);
      runner_a.dispatch();
      runner_b.dispatch();
      if (round % 2 == 0) {
        runner_a.combine();
        runner_b.combine();
      } else {
        runner_b.combine();
        runner_a.combine();
      }
    }
  });
}

// FR-144: the comm backend must be the group's.
TEST_P(BackendSuite, CommBackendOfAnotherSizeOrOrderIsRefusedOnEveryRank) {
  const GroupStep shape = random_step(4, 2, 12, 2, 16, 4);
  struct Case {
    int world_size;
    bool reversed;
    const char* text;
  };
  for (const Case& c : {Case{3, false, "must have rank 0 of 3, got rank 0 of 2"},
                        Case{2, true, "must have rank 1 of 2, got rank 0 of 2"}}) {
    run(2, [&](int rank, const std::shared_ptr<CommBackend>& world) {
      BootstrapConfig bootstrap;
      bootstrap.world_size = c.world_size;
      bootstrap.rank = c.reversed ? 1 - rank : rank;
      SuiteConfig config;
      config.comm_backend = world;
      try {
        backend().create(bootstrap, params_for(shape), config);
        ADD_FAILURE() << "rank " << rank << ": was taken";
      } catch (const std::invalid_argument& error) {
        EXPECT_THAT(error.what(), HasSubstr(c.text));
      }
    });
  }
}

}  // namespace
}  // namespace moe_ep::testing
