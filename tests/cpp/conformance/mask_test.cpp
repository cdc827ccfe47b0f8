// Rank masks (FIELD.md, FR-094): ranks that take no part are neither waited for nor touched.
#include <gmock/gmock.h>

#include "conformance/backend_suite.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::HasSubstr;

RankMask mask_of(std::initializer_list<int> ranks) {
  RankMask mask;
  for (const int rank : ranks)
    mask.set(rank);
  return mask;
}

SuiteConfig masked_config() {
  SuiteConfig config;
  config.enable_rank_mask = true;
  return config;
}

// FR-094: rank 3 has gone; tokens for its experts contribute nothing.
TEST_P(BackendSuite, StepsGoOnWithoutAMaskedRank) {
  const GroupStep usual = random_step(1, 4, 8, 4, 16, 5);
  run_instances(4, params_for(usual), masked_config(), [&](MoEEpCommunication& comm, int rank) {
    run_step(backend(), comm, usual);
    if (rank == 3) return;
    for (std::uint64_t seed = 2; seed < 2 + backend().rounds(100); ++seed) {
      GroupStep step = random_step(seed, 4, 8, 4, 16, 5);
      step.active = mask_of({0, 1, 2});
      StepOptions options;
      options.pass_mask = true;
      run_step(backend(), comm, step, options);
    }
  });
}

// Nobody waits for a rank that has gone to finish a round that it, too, has abandoned.
TEST_P(BackendSuite, AnAbandonedRoundIsFinishedWithoutAMaskedRank) {
  const GroupStep usual = random_step(3, 3, 6, 4, 16, 5);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto stays = make(rank, group, params_for(usual), masked_config());
    const auto goes = make(rank, group, params_for(usual), masked_config());
    StepRunner abandoned(backend(), *goes, usual);
    abandoned.dispatch();
    goes->destroy();
    group->barrier();
    if (rank == 2) return;
    GroupStep step = random_step(4, 3, 6, 4, 16, 5);
    step.active = mask_of({0, 1});
    StepOptions options;
    options.pass_mask = true;
    run_step(backend(), *stays, step, options);
  });
}

TEST_P(BackendSuite, NothingOfAMaskedRankIsWritten) {
  const GroupStep usual = random_step(2, 3, 6, 4, 16, 5);
  run(3, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto comm = make(rank, group, params_for(usual), masked_config());
    run_step(backend(), *comm, usual);
    const auto slice = [&] {
      std::vector<std::byte> bytes(static_cast<std::size_t>(comm->workspace_bytes()));
      backend().download(bytes.data(), comm->slice(), bytes.size());
      return bytes;
    };
    group->barrier();
    const auto before = slice();
    group->barrier();
    for (std::uint64_t seed = 3; rank != 1 && seed < 13; ++seed) {
      GroupStep step = random_step(seed, 3, 6, 4, 16, 5);
      step.active = mask_of({0, 2});
      StepOptions options;
      options.pass_mask = true;
      run_step(backend(), *comm, step, options);
    }
    group->barrier();
    if (rank == 1) check(slice() == before, "a masked rank's slice was written to");
  });
}

TEST_P(BackendSuite, AllMaskedButOneIsAStepOfOne) {
  const GroupStep usual = random_step(14, 4, 8, 3, 16, 5);
  for (const int last : {0, 2}) {
    run_instances(4, params_for(usual), masked_config(), [&](MoEEpCommunication& comm, int rank) {
      for (std::uint64_t seed = 15; rank == last && seed < 25; ++seed) {
        GroupStep step = random_step(seed, 4, 8, 3, 16, 5);
        step.active = mask_of({last});
        StepOptions options;
        options.pass_mask = true;
        run_step(backend(), comm, step, options);
      }
    });
  }
}

// FR-094: all ones is the same as no mask, bit by bit.
TEST_P(BackendSuite, MaskOfEverybodyChangesNoBit) {
  const GroupStep step = random_step(26, 3, 6, 4, 33, 6);
  run_instances(3, params_for(step), masked_config(), [&](MoEEpCommunication& comm, int) {
    std::vector<std::vector<std::vector<std::byte>>> results;
    for (const bool pass_mask : {false, true}) {
      StepOptions options;
      options.pass_mask = pass_mask;
      StepRunner runner(backend(), comm, step, options);
      runner.dispatch();
      runner.combine();
      results.push_back(runner.results());
    }
    check(results[0] == results[1], "bits differ");
  });
}

TEST_P(BackendSuite, DefaultMaskHoldsUntilItChanges) {
  const GroupStep usual = random_step(27, 4, 8, 4, 16, 5);
  run(4, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto three = group->split(rank == 2 ? 1 : 0, rank);
    const auto instance = make(rank, group, params_for(usual), masked_config());
    MoEEpCommunication& comm = *instance;
    if (rank == 2) return;
    comm.set_active_ranks({3, 0, 1, 0});
    for (std::uint64_t seed = 28; seed < 33; ++seed) {
      GroupStep step = random_step(seed, 4, 8, 4, 16, 5);
      step.active = mask_of({0, 1, 3});
      run_step(backend(), comm, step);
    }
    three->barrier();  // a rank that is dropped in the middle of a step has no result of it
    if (rank == 1) return;
    // An argument wins over the default.
    GroupStep step = random_step(33, 4, 8, 4, 16, 5);
    step.active = mask_of({0, 3});
    StepOptions options;
    options.pass_mask = true;
    run_step(backend(), comm, step, options);
    comm.set_active_ranks({0, 3});
    run_step(backend(), comm, step);
  });
}

TEST_P(BackendSuite, WrongMasksAreRefusedBeforeAnythingIsSent) {
  const GroupStep step = random_step(34, 2, 4, 2, 16, 3);
  run(2, [&](int rank, const std::shared_ptr<CommBackend>& group) {
    const auto masked = make(rank, group, params_for(step), masked_config());
    const auto plain = make(rank, group, params_for(step));
    const auto text_of = [&](MoEEpCommunication& comm, const RankMask& mask) -> std::string {
      GroupStep other = step;
      other.active = mask;
      StepOptions options;
      options.pass_mask = true;
      try {
        StepRunner(backend(), comm, other, options).send();
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "taken";
    };
    EXPECT_EQ(text_of(*plain, mask_of({0, 1})),
              "dispatch: active_rank_mask needs enable_rank_mask=True at construction, got a mask "
              "without it");
    EXPECT_EQ(text_of(*masked, mask_of({1 - rank})),
              "dispatch: active_rank_mask must contain the own rank " + std::to_string(rank) +
                  ", got a mask without it");
    EXPECT_EQ(text_of(*masked, mask_of({0, 1, 2})),
              "dispatch: active_rank_mask must name ranks below 2, got rank 2");
    EXPECT_EQ(text_of(*masked, mask_of({0, 1, 255})),
              "dispatch: active_rank_mask must name ranks below 2, got rank 255");
    EXPECT_THROW(plain->set_active_ranks({rank}), std::invalid_argument);
    EXPECT_THROW(masked->set_active_ranks({1 - rank}), std::invalid_argument);
    EXPECT_THROW(masked->set_active_ranks({0, 1, 2}), std::invalid_argument);
    EXPECT_THROW(masked->active_rank_mask({2}), std::invalid_argument);
    run_step(backend(), *masked, step);
    run_step(backend(), *plain, step);
  });
}

TEST_P(BackendSuite, CombineTakesTheDispatchsMaskAndNoOther) {
  const GroupStep step = random_step(35, 2, 4, 2, 16, 3);
  run_instances(2, params_for(step), masked_config(), [&](MoEEpCommunication& comm, int rank) {
    StepRunner runner(backend(), comm, step);
    runner.dispatch();
    Tensor output(backend(), kBFloat16, comm.num_local_tokens(), 16);
    try {
      comm.combine(comm.get_combine_input_buffer(kBFloat16), output.view(), mask_of({rank}));
      ADD_FAILURE() << "another mask was taken";
    } catch (const std::logic_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("active_rank_mask must equal the dispatch's"));
    }
    runner.combine();
  });
}

}  // namespace
}  // namespace moe_ep::testing
