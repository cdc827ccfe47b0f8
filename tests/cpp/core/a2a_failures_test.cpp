// Peers of the stateless family that disagree or do not come.
#include <moe_ep/a2a.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "support/a2a_world.hpp"
#include "support/resources.hpp"

namespace moe_ep {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

// FR-009.
TEST(A2aFailuresTest, DisagreementsAreMismatchesOnEveryRank) {
  struct Case {
    const char* text;
    std::function<void(A2aDispatchArgs&)> change;
  };
  const Bytes stats(64);
  const std::vector<Case> cases = {
      {"runtime_max_tokens_per_rank", [](auto& a) { a.runtime_max_tokens_per_rank = 4; }},
      {"num_experts", [](auto& a) { a.num_experts = 5; }},
      {"presence", [&](auto& a) { a.eplb_local_stats = stats.view(kInt32, {2}); }},
      {"number of payloads", [](auto& a) { a.input_payloads.pop_back(); }},
      {"row bytes of payload 0",
       [](auto& a) {
         TensorView& payload = a.input_payloads[0];
         payload.shape[1] -= 1;
       }},
  };
  const GroupStep step = random_step(1, 3, 6, 2, 8, 3);
  for (const Case& c : cases) {
    const A2aWorld world(3, 4, 16 + 8 + 1, 16, 2);
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      A2aStep runner(world, rank, metainfo, step, 16, 1);
      if (rank == 2) c.change(runner.args);
      try {
        moe_a2a_dispatch(runner.args);
        ADD_FAILURE() << "rank " << rank << " noticed nothing: " << c.text;
      } catch (const MoEEpMismatchError& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr(std::string("moe_a2a_dispatch: ") + c.text),
                                        HasSubstr("on rank 2")));
      }
    });
  }
}

TEST(A2aFailuresTest, DifferentCombineRowsAreMismatchesOnEveryRank) {
  const GroupStep step = random_step(2, 2, 4, 2, 8, 3);
  for (const bool low_precision : {false, true}) {
    const A2aWorld world(2, 4, 16 + 8, 32);
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      A2aStep runner(world, rank, metainfo, step, 16);
      runner.dispatch();
      A2aCombineArgs combine = runner.combine_args();
      const Bytes wide(4096);
      if (rank == 1 && low_precision) combine.use_low_precision = true;
      if (rank == 1 && !low_precision) {
        combine.payload = wide.view(kFloat32, {6, 8});
      }
      EXPECT_THROW(moe_a2a_combine(combine), MoEEpMismatchError);
    });
  }
}

TEST(A2aFailuresTest, MissingRanksAreNamedAndAFreshStartWorks) {
  const ScopedEnv timeout("MOE_EP_TIMEOUT_SEC", "1");
  const GroupStep step = random_step(3, 3, 6, 2, 8, 3);
  for (const Phase phase : {Phase::kDispatch, Phase::kCombine}) {
    const A2aWorld world(3, 4, 16 + 8, 16);
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      A2aStep runner(world, rank, metainfo, step, 16);
      try {
        if (phase == Phase::kDispatch && rank != 1) moe_a2a_dispatch(runner.args);
        if (phase == Phase::kCombine) {
          runner.dispatch();
          if (rank != 1) moe_a2a_combine(runner.combine_args());
        }
        EXPECT_EQ(rank, 1);
      } catch (const MoEEpTimeoutError& error) {
        EXPECT_EQ(error.ranks(), (std::vector<int>{1}));
        EXPECT_EQ(error.phase(), phase);
        EXPECT_THAT(error.what(), HasSubstr("must arrive within 1 s, got nothing from rank 1"));
      }
    });
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      for (int round = 0; round < 3; ++round)
        A2aStep(world, rank, metainfo, step, 16).run();
    });
  }
}

TEST(A2aFailuresTest, TimeoutsThatAreNoSecondsAreRefused) {
  GroupStep step = random_step(4, 1, 2, 1, 4, 1);
  const A2aWorld world(1, 1, 16 + 4, 8);
  for (const char* text : {"0", "-1", "86401", "1.5", "soon", "", "1 ", "99999999999999999999"}) {
    const ScopedEnv timeout("MOE_EP_TIMEOUT_SEC", text);
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      try {
        A2aStep(world, rank, metainfo, step, 16).dispatch();
        ADD_FAILURE() << "'" << text << "' was taken";
      } catch (const std::invalid_argument& error) {
        EXPECT_EQ(error.what(), std::string("MOE_EP_TIMEOUT_SEC must be an integer in 1..86400, "
                                            "got '") +
                                    text + "'");
      }
    });
  }
  const ScopedEnv timeout("MOE_EP_TIMEOUT_SEC", "86400");
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    A2aStep(world, rank, metainfo, step, 16).run();
  });
}

// A refusal touches nothing: the same step can be made again.
TEST(A2aFailuresTest, RefusalsSendNothing) {
  const GroupStep step = random_step(5, 2, 4, 2, 8, 3);
  const A2aWorld world(2, 4, 16 + 8, 16);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    for (int round = 0; round < 5; ++round) {
      A2aStep wrong(world, rank, metainfo, step, 16);
      wrong.args.runtime_max_tokens_per_rank = 99;
      if (rank == round % 2) {
        EXPECT_THROW(wrong.dispatch(), std::invalid_argument);
      }
      A2aStep(world, rank, metainfo, step, 16).run();
    }
  });
}

}  // namespace
}  // namespace moe_ep
