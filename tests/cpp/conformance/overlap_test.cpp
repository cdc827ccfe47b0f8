// One round cannot damage the previous one (FIELD.md, SYNC): ranks run at random speeds without any
// barrier of their own; T and what travels change with every round.
#include <sched.h>

#include "conformance/backend_suite.hpp"

namespace moe_ep::testing {
namespace {

// Keeps a rank busy for a random while, most often not at all.
void dawdle(std::uint64_t random) {
  if (random % 4 != 0) return;
  volatile std::uint64_t sink = 0;
  const std::uint64_t work = random >> 8 & 0x3fff;
  for (std::uint64_t i = 0; i < work; ++i)
    sink = mix(sink, i);
  for (std::uint64_t i = 0; i < (random >> 32 & 7); ++i)
    ::sched_yield();
}

StepOptions options_of(std::uint64_t draw) {
  StepOptions options;
  options.weights = draw % 3 != 0;
  options.in_place = draw % 2 == 0;
  if (draw % 5 == 0) {
    options.hidden_dtype = kUInt8;
    options.width = 11;
  }
  if (draw % 7 == 0) options.extras = {{kInt16, 5}};
  return options;
}

void run_at_random_speeds(const SuiteBackend& backend, MoEEpCommunication& comm, int rank,
                          int num_ranks, std::uint64_t seed, std::uint64_t rounds) {
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const auto draw = mix(seed, round);  // the same on every rank
    const std::int64_t tokens_per_rank =
        draw % 4 == 0 ? 8 : 1 + static_cast<std::int64_t>(draw >> 8) % 8;
    const GroupStep step = random_step(draw, num_ranks, 2 * num_ranks, 3, 20, tokens_per_rank);
    const auto own = [&](std::uint64_t place) {
      return mix(draw, static_cast<std::uint64_t>(rank), place);
    };
    StepRunner runner(backend, comm, step, options_of(draw));
    dawdle(own(1));
    runner.send();
    dawdle(own(2));
    runner.check_received();
    dawdle(own(3));
    runner.check_received();
    runner.combine();
    dawdle(own(4));
  }
}

// FR-012, FR-064, FR-075.
TEST_P(BackendSuite, RoundsAtRandomSpeedsAreExact) {
  for (const int num_ranks : {2, 4}) {
    SuiteConfig config;
    config.extra_payload_bytes_per_token = 16;
    const GroupStep largest = random_step(1, num_ranks, 2 * num_ranks, 3, 20, 8);
    run_instances(num_ranks, params_for(largest), config, [&](MoEEpCommunication& comm, int rank) {
      run_at_random_speeds(backend(), comm, rank, num_ranks, 77, backend().rounds(300));
    });
  }
}

// FR-072: a rank that is late out of its constructor loses no flag.
TEST_P(BackendSuite, FirstStepWaitsForLateStarters) {
  const GroupStep step = random_step(2, 3, 6, 2, 16, 3);
  for (int late = 0; late < 3; ++late) {
    run_instances(3, params_for(step), {}, [&](MoEEpCommunication& comm, int rank) {
      for (int i = 0; rank == late && i < 200; ++i)
        ::sched_yield();
      run_step(backend(), comm, step);
    });
  }
}

// FR-069: step sizes around those of warps and blocks.
TEST_P(BackendSuite, StepSizesAroundPowersOfTwoAreExact) {
  for (const int num_ranks : {2, 3, 8}) {
    std::vector<GroupStep> steps;
    const bool all = backend().rounds(13) == 13;
    for (const std::int64_t tokens_per_rank : {1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 32, 33, 127}) {
      if (!all && num_ranks > 3 && tokens_per_rank % 32 != 1) continue;
      steps.push_back(random_step(steps.size(), num_ranks, 2 * num_ranks, 2, 4, tokens_per_rank));
    }
    run_steps(steps);
  }
}

// Two instances that share one workspace take turns, at random speeds.
TEST_P(BackendSuite, SharingInstancesTakeTurnsAtRandomSpeeds) {
  const GroupStep largest = random_step(3, 3, 6, 3, 20, 8);
  SuiteConfig config;
  config.extra_payload_bytes_per_token = 16;
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto a = make(rank, group, params_for(largest), config);
    const auto b = make(rank, group, params_for(largest), config);
    check(a->slice() == b->slice(), "equal layouts do not share a workspace");
    for (std::uint64_t turn = 0; turn < backend().rounds(20); ++turn) {
      run_at_random_speeds(backend(), turn % 2 == 0 ? *a : *b, rank, 3, 1000 + turn, 4);
    }
  });
}

}  // namespace
}  // namespace moe_ep::testing
