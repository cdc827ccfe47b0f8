// Ranks that send or receive nothing (FIELD.md, ZERO).
#include "conformance/backend_suite.hpp"

namespace moe_ep::testing {
namespace {

GroupStep step_with_counts(std::uint64_t seed, std::vector<std::int64_t> counts,
                           std::int64_t tokens_per_rank) {
  GroupStep step = random_step(seed, static_cast<int>(counts.size()), 16, 8, 64, tokens_per_rank);
  step.num_tokens = std::move(counts);
  random_ids(step);
  return step;
}

// FR-001.
TEST_P(BackendSuite, RanksWithoutTokensAreNormal) {
  run_steps({step_with_counts(1, {5, 0, 7, 3}, 7), step_with_counts(2, {5, 0, 7, 3}, 7),
             step_with_counts(3, {0, 7, 0, 0}, 7)});
}

// FR-002: an empty quantised tensor is a tensor as any other.
TEST_P(BackendSuite, EmptyQuantisedTensorsTravel) {
  StepOptions options;
  options.hidden_dtype = kUInt8;
  options.width = 32;
  options.scale_dtype = kFloat8E4M3FN;
  options.scale_width = 4;
  run_steps({step_with_counts(4, {3, 0, 2, 3}, 3)}, options);
}

// FR-004.
TEST_P(BackendSuite, RanksThatReceiveNothingAreNormal) {
  std::vector<GroupStep> steps;
  for (int target = 0; target < 4; ++target) {
    GroupStep step = step_with_counts(5, {5, 2, 5, 1}, 5);
    constant_ids(step, 4 * target + 1);
    steps.push_back(step);
  }
  run_steps(steps);
}

// FR-006.
TEST_P(BackendSuite, StepsInWhichNobodySendsAnythingAreNormal) {
  run_steps({step_with_counts(6, {0, 0, 0, 0}, 1), step_with_counts(7, {1, 1, 1, 1}, 1),
             step_with_counts(8, {0, 0, 0, 0}, 6), step_with_counts(9, {6, 6, 6, 6}, 6)});
}

// FR-007: no count looks like another.
TEST_P(BackendSuite, CountsAreExactOverAThousandAlternatingRounds) {
  const auto rounds = static_cast<int>(backend().rounds(1000));
  GroupStep step = random_step(10, 2, 4, 2, 8, 3);
  run_instances(2, params_for(step), {}, [&](MoEEpCommunication& comm, int) {
    GroupStep mine = step;
    for (int round = 0; round < rounds; ++round) {
      mine.seed = 100 + static_cast<std::uint64_t>(round);
      mine.num_tokens = {round % 2 == 0 ? 0 : 3, round % 3 == 0 ? 3 : 0};
      random_ids(mine);
      run_step(backend(), comm, mine);
    }
  });
}

TEST_P(BackendSuite, OnlyVoidPicksCombineToPlusZero) {
  GroupStep step = step_with_counts(11, {4, 4, 4, 4}, 4);
  constant_ids(step, -1);
  run_steps({step});
}

}  // namespace
}  // namespace moe_ep::testing
