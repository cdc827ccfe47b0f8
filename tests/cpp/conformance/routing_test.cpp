// Which tokens go where (FIELD.md, TOPK; GROUP for the rank counts).
#include <limits>

#include "conformance/backend_suite.hpp"
#include "support/reference.hpp"

namespace moe_ep::testing {
namespace {

// FR-023, FR-024, FR-026: no value of top_k is special.
TEST_P(BackendSuite, EveryTopKIsExact) {
  for (int top_k = 1; top_k <= 33; ++top_k) {
    const std::int64_t value = top_k == 33 ? 64 : top_k;
    run_steps({random_step(static_cast<std::uint64_t>(value), 3, 66, value, 24, 4)});
  }
}

// FR-146.
TEST_P(BackendSuite, EveryRankCountIsExact) {
  for (const int num_ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
    if (num_ranks > backend().max_ranks()) continue;
    const auto seed = static_cast<std::uint64_t>(num_ranks);
    run_steps({random_step(seed, num_ranks, 3 * num_ranks, 2, 40, 5),
               random_step(seed + 100, num_ranks, 3 * num_ranks, 2, 40, 1)});
  }
}

// FR-154: counters beyond 32 ranks.
TEST_P(BackendSuite, ManyRanksAreExact) {
  const int num_ranks = backend().max_ranks();
  run_steps({random_step(7, num_ranks, num_ranks, 6, 16, 3),
             random_step(8, num_ranks, num_ranks, 6, 16, 2)});
}

// FR-033, FR-039, FR-041.
TEST_P(BackendSuite, VoidPicksGoNowhere) {
  GroupStep step = random_step(1, 4, 8, 4, 16, 4);
  step.num_tokens = {4, 4, 4, 4};
  step.ids.assign(4, {-1, 3, -1, -1,                      // to the owner of 3 alone
                      -1, -1, -1, -1,                     // nowhere
                      8, 9, 2147483647, -2147483647 - 1,  // nowhere
                      -7, 0, -7, 7});                     // to the first and the last
  for (int dst = 0; dst < 4; ++dst) {
    const std::size_t expected = dst == 0 || dst == 1 || dst == 3 ? 1 : 0;
    ASSERT_EQ(reference::arrivals(step, 0, dst).size(), expected);
  }
  run_steps({step});
}

// FR-034.
TEST_P(BackendSuite, DuplicatePicksSendATokenOnce) {
  GroupStep step = random_step(2, 2, 8, 6, 16, 3);
  step.num_tokens = {3, 2};
  step.ids = {{3, 3, 5, 5, 3, 5, 0, 1, 2, 3, 0, 0, 7, 7, 7, 7, 7, 7},
              {4, 5, 6, 7, 4, 5, 0, 0, 0, 0, 0, 4}};
  run_steps({step});
}

// FR-036, FR-037: what does not fit into 32 bits is void, not another expert.
TEST_P(BackendSuite, WideIdsAreNotTruncated) {
  constexpr std::int64_t kWrap = std::int64_t{1} << 32;
  GroupStep step = random_step(3, 2, 8, 4, 16, 3);
  step.num_tokens = {3, 3};
  step.ids.assign(2, {kWrap + 3, 1, -1, kWrap, kWrap + 3, kWrap + 7, -kWrap + 2,
                      std::numeric_limits<std::int64_t>::min(),
                      std::numeric_limits<std::int64_t>::max(), 5, 6, -kWrap});
  StepOptions options;
  options.wide_ids = true;
  run_steps({step}, options);
}

TEST_P(BackendSuite, WideAndNarrowIdsGiveTheSame) {
  const GroupStep step = random_step(4, 3, 12, 5, 16, 6);
  StepOptions wide;
  wide.wide_ids = true;
  run_steps({step});
  run_steps({step}, wide);
  // Ranks need not agree on it.
  run_instances(3, params_for(step), {}, [&](MoEEpCommunication& comm, int rank) {
    run_step(backend(), comm, step, rank == 1 ? wide : StepOptions{});
  });
}

// FR-038.
TEST_P(BackendSuite, InvalidExpertIdAppearsVerbatim) {
  for (const std::int64_t invalid : {std::int64_t{-1}, std::int64_t{-2147483648}, std::int64_t{8},
                                     std::int64_t{15}, std::int64_t{2147483647}}) {
    GroupStep step = random_step(5, 2, 8, 3, 16, 6);
    step.invalid_expert_id = invalid;
    run_steps({step});
  }
}

// FR-044.
TEST_P(BackendSuite, ThousandsOfExpertsAreExact) {
  for (const std::int64_t num_experts : {2048, 4096}) {
    run_steps({random_step(6, 8, num_experts, 8, 16, 6)});
  }
}

// FR-019.
TEST_P(BackendSuite, AllTokensOnOneRankAreEachThereOnce) {
  constexpr int kRanks = 8;
  constexpr std::int64_t kTokens = 300;
  GroupStep step = random_step(7, kRanks, 64, 4, 4, kTokens);
  step.num_tokens.assign(kRanks, kTokens);
  step.ids.assign(kRanks, {});
  for (auto& ids : step.ids) {
    for (std::int64_t token = 0; token < kTokens; ++token)
      ids.insert(ids.end(), {0, 1, 2, 3});
  }
  run_steps({step});
}

// FR-034, FR-073: an answer counts once a rank, however many picks led there.
TEST_P(BackendSuite, EachRankContributesOnce) {
  GroupStep step = random_step(8, 4, 8, 8, 32, 5);
  step.num_tokens = {5, 5, 5, 5};
  step.any_bits = false;
  step.ids.assign(4, {});
  for (auto& ids : step.ids) {
    for (int token = 0; token < 5; ++token) {
      const int num_owners = token == 4 ? 4 : token + 1;
      for (int k = 0; k < 8; ++k)
        ids.push_back(2 * (k % num_owners) + k / 4);
    }
  }
  run_steps({step});
}

}  // namespace
}  // namespace moe_ep::testing
