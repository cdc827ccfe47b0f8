// The protocol run by hand in one thread: ranks interleave where they wait, or part by part.
#include "protocol/one_sided.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "protocol/transport/fence.hpp"
#include "support/fake_group.hpp"

namespace moe_ep::protocol {
namespace {

using testing::FakeCoop;
using testing::FakeGroup;
using testing::FakeMemory;
using testing::FakeRows;
using testing::FakeStep;
using testing::FakeTokens;

using Ids = std::vector<std::vector<std::int64_t>>;

int owner_of(std::int64_t id, int num_experts, int num_ranks) {
  if (id < 0 || id >= num_experts) return -1;
  std::int64_t end = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    end += num_experts / num_ranks + (rank < num_experts % num_ranks ? 1 : 0);
    if (id < end) return rank;
  }
  return -1;
}

// One step of a FakeGroup, and what must come of it.
struct World {
  FakeGroup& group;
  FakeStep step;
  std::vector<FakeTokens> tokens;  // of each rank
  std::map<int, DispatchParams> dispatched = {};
  std::map<int, StepStatus> statuses = {};
  std::map<int, std::vector<std::vector<std::uint32_t>>> results = {};

  std::vector<int> sent(int src, int dst) const {
    std::vector<int> list;
    const auto& ids = tokens[static_cast<std::size_t>(src)].ids;
    for (std::size_t token = 0; token < ids.size(); ++token) {
      const bool visits = std::any_of(ids[token].begin(), ids[token].end(), [&](std::int64_t id) {
        return owner_of(id, step.num_experts, group.num_ranks()) == dst;
      });
      if (visits && step.active.test(dst)) list.push_back(static_cast<int>(token));
    }
    return list;
  }

  StepStatus dispatch(int rank, FakeMemory& memory) {
    FakeCoop coop;
    StepStatus shared;
    dispatched[rank] =
        group.dispatch_params(rank, step, tokens[static_cast<std::size_t>(rank)]);
    return statuses[rank] =
               protocol::dispatch<FenceTransport>(coop, memory, dispatched[rank], shared);
  }

  // Every expert adds a word of its own to what it received.
  static std::uint32_t expert(int rank, std::uint32_t value) {
    return value * 3 + static_cast<std::uint32_t>(rank) * 0x10001u;
  }

  void write_expert_output(int rank) {
    const CombineParams params = group.combine_params(rank, step, 0);
    for (int src = 0; src < group.num_ranks(); ++src) {
      for (int row = 0; row < step.tokens_per_rank; ++row) {
        for (int word = 0; word < step.num_words; ++word) {
          const std::uint32_t value =
              expert(rank, FakeGroup::received(dispatched[rank], 0, src, row, word));
          std::memcpy(params.row(rank, src, row) + 4 * word, &value, sizeof value);
        }
      }
    }
  }

  StepStatus combine(int rank, FakeMemory& memory) {
    FakeCoop coop;
    StepStatus shared;
    const auto num_tokens = tokens[static_cast<std::size_t>(rank)].ids.size();
    results[rank].resize(num_tokens);
    const CombineParams params =
        group.combine_params(rank, step, static_cast<std::int32_t>(num_tokens));
    FakeRows rows{params, results[rank]};
    return statuses[rank] = protocol::combine<FenceTransport>(coop, memory, rows, params, shared);
  }

  void expect_dispatched(int rank) const {
    const DispatchParams& params = dispatched.at(rank);
    for (int src = 0; src < group.num_ranks(); ++src) {
      const auto list = step.active.test(src) ? sent(src, rank) : std::vector<int>{};
      ASSERT_EQ(params.workspace.recv_counts()[src], static_cast<int>(list.size()));
      for (int row = 0; row < step.tokens_per_rank; ++row) {
        const bool empty = row >= static_cast<int>(list.size());
        for (int k = 0; k < step.top_k; ++k) {
          const auto id = static_cast<std::int32_t>(FakeGroup::received(params, 1, src, row, k));
          std::int64_t want = step.invalid_expert_id;
          if (!empty) {
            const std::int64_t given = tokens[static_cast<std::size_t>(src)]
                                           .ids[static_cast<std::size_t>(list[std::size_t(row)])]
                                               [static_cast<std::size_t>(k)];
            if (owner_of(given, step.num_experts, group.num_ranks()) >= 0) want = given;
          }
          ASSERT_EQ(id, want) << "rank " << rank << ", block " << src << ", row " << row;
        }
        if (empty) continue;
        const auto& words = tokens[static_cast<std::size_t>(src)].rows[std::size_t(list[std::size_t(row)])];
        for (int word = 0; word < step.num_words; ++word) {
          ASSERT_EQ(FakeGroup::received(params, 0, src, row, word), words[std::size_t(word)])
              << "rank " << rank << ", block " << src << ", row " << row;
        }
      }
    }
  }

  void expect_combined(int rank) const {
    const FakeTokens& own = tokens[static_cast<std::size_t>(rank)];
    for (std::size_t token = 0; token < own.ids.size(); ++token) {
      std::vector<std::uint32_t> expected(static_cast<std::size_t>(step.num_words));
      for (int dst = 0; dst < group.num_ranks(); ++dst) {
        const auto list = sent(rank, dst);
        if (std::find(list.begin(), list.end(), static_cast<int>(token)) == list.end()) continue;
        for (std::size_t word = 0; word < expected.size(); ++word) {
          expected[word] += expert(dst, own.rows[token][word]);
        }
      }
      ASSERT_EQ(results.at(rank)[token], expected) << "rank " << rank << ", token " << token;
    }
  }
};

std::vector<int> members(const RankMask& mask) {
  std::vector<int> ranks;
  mask.for_each([&](int rank) { ranks.push_back(rank); });
  return ranks;
}

// A whole step, ranks starting in a random order in both phases.
void run_step(World& world, std::mt19937& random) {
  std::vector<int> ranks = members(world.step.active);
  std::shuffle(ranks.begin(), ranks.end(), random);
  FakeGroup::run(ranks, [&](int rank, FakeMemory& memory) {
    ASSERT_TRUE(world.dispatch(rank, memory).ok());
    ASSERT_NO_FATAL_FAILURE(world.expect_dispatched(rank));
    world.write_expert_output(rank);
  });
  std::shuffle(ranks.begin(), ranks.end(), random);
  FakeGroup::run(ranks, [&](int rank, FakeMemory& memory) {
    ASSERT_TRUE(world.combine(rank, memory).ok());
    ASSERT_NO_FATAL_FAILURE(world.expect_combined(rank));
  });
}

Ids random_ids(int num_tokens, int top_k, int num_experts, std::mt19937& random) {
  Ids ids(static_cast<std::size_t>(num_tokens));
  for (auto& token : ids) {
    for (int k = 0; k < top_k; ++k) {
      const auto draw = random() % 10;
      token.push_back(draw == 0   ? -1
                      : draw == 1 ? (std::int64_t{1} << 32) + 3
                                  : static_cast<std::int64_t>(random() % unsigned(num_experts)));
    }
  }
  return ids;
}

std::vector<FakeTokens> random_tokens(int num_ranks, const FakeStep& step, std::uint32_t salt,
                                      std::mt19937& random) {
  std::vector<FakeTokens> tokens;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int count = static_cast<int>(random() % unsigned(step.tokens_per_rank + 1));
    tokens.push_back(FakeTokens::make(
        salt, rank, random_ids(count, step.top_k, step.num_experts, random), step.num_words));
  }
  return tokens;
}

TEST(OneSidedTest, RandomStepsAreExactInAnyOrderOfArrival) {
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    const int num_ranks = 1 + static_cast<int>(random() % 9);
    const int top_k = 1 + static_cast<int>(random() % 6);
    constexpr int kCapacity = 7;
    constexpr int kWords = 5;
    FakeGroup group(num_ranks, kCapacity, 4 * (kWords + top_k), 4 * kWords);
    for (std::uint32_t step_idx = 0; step_idx < 5; ++step_idx) {
      FakeStep step{.tokens_per_rank = 1 + static_cast<int>(random() % kCapacity),
                    .num_experts = 1 + static_cast<int>(random() % 20),
                    .top_k = top_k,
                    .num_words = 1 + static_cast<int>(random() % kWords),
                    .active = RankMask::first(num_ranks),
                    .invalid_expert_id = round % 2 == 0 ? -1 : 1'000'000};
      World world{group, step, random_tokens(num_ranks, step, step_idx, random)};
      ASSERT_NO_FATAL_FAILURE(run_step(world, random)) << "round " << round;
    }
  }
}

// FR-065: the wrap of the epoch is a step as any other.
TEST(OneSidedTest, StepsAcrossTheWrapOfTheEpochAreExact) {
  std::mt19937 random(5);
  for (const Epoch start : {0xfffffffcu, 0x7ffffffcu}) {
    FakeGroup group(3, 4, 64, 64, 0, start);
    FakeStep step{.tokens_per_rank = 4, .num_experts = 6, .top_k = 2, .num_words = 3,
                  .active = RankMask::first(3)};
    for (std::uint32_t step_idx = 0; step_idx < 10; ++step_idx) {
      World world{group, step, random_tokens(3, step, step_idx, random)};
      ASSERT_NO_FATAL_FAILURE(run_step(world, random)) << "epoch " << start + step_idx;
    }
    EXPECT_EQ(group.workspace(0).header()->epoch, start + 10);
  }
}

TEST(OneSidedTest, MaskedRanksNeitherReceiveNorHoldAnybodyUp) {
  std::mt19937 random(6);
  FakeGroup group(5, 4, 64, 64);
  RankMask active = RankMask::first(5);
  active.reset(0);
  active.reset(3);
  FakeStep step{.tokens_per_rank = 4, .num_experts = 10, .top_k = 3, .num_words = 3,
                .active = RankMask::first(5)};
  World usual{group, step, std::vector<FakeTokens>(5, FakeTokens::make(1, 0, Ids(4, {0, 6, 9}), 3))};
  ASSERT_NO_FATAL_FAILURE(run_step(usual, random));
  step.active = active;
  const auto untouched = [&](int rank) {
    const std::byte* slice = group.workspace(rank).own();
    return std::vector<std::byte>(slice, slice + group.layout().slice_bytes);
  };
  const auto before0 = untouched(0);
  const auto before3 = untouched(3);
  for (std::uint32_t step_idx = 0; step_idx < 20; ++step_idx) {
    World world{group, step, random_tokens(5, step, step_idx, random)};
    ASSERT_NO_FATAL_FAILURE(run_step(world, random));
  }
  EXPECT_TRUE(untouched(0) == before0) << "a masked rank's slice was written to";
  EXPECT_TRUE(untouched(3) == before3) << "a masked rank's slice was written to";
}

// A rank writes its own slice and, in others', only its line and its block of rows.
TEST(OneSidedTest, DispatchWritesOnlyItsOwnLineAndBlockOfAPeer) {
  constexpr int kTokens = 3;
  FakeGroup group(3, 8, 64, 64);
  const FakeStep step{.tokens_per_rank = 4, .num_experts = 3, .top_k = 1, .num_words = 5,
                      .active = RankMask::first(3), .timeout_ns = 0};
  const Workspace peer = group.workspace(2);
  const std::vector<std::byte> before(peer.own(), peer.own() + group.layout().slice_bytes);
  World world{group, step, std::vector<FakeTokens>(3, FakeTokens::make(9, 1, Ids(kTokens, {2}), 5))};
  FakeMemory memory;
  EXPECT_FALSE(world.dispatch(1, memory).ok());  // nobody else comes
  const DispatchParams& params = world.dispatched[1];
  std::vector<bool> allowed(before.size());
  const auto allow = [&](const std::byte* from, std::int64_t bytes) {
    const auto first = static_cast<std::size_t>(from - peer.own());
    std::fill_n(allowed.begin() + static_cast<std::ptrdiff_t>(first), bytes, true);
  };
  allow(reinterpret_cast<std::byte*>(peer.line(2, 1)), sizeof(PeerLine));
  allow(params.row(2, 0, 1, 0), kTokens * params.row_bytes(0));
  allow(params.row(2, 1, 1, 0), kTokens * params.row_bytes(1));
  for (std::size_t at = 0; at < before.size(); ++at) {
    ASSERT_TRUE(allowed[at] || before[at] == peer.own()[at]) << "byte " << at;
  }
}

// FR-093: a wait that gives up fails the phase, names the missing and leaves no result.
TEST(OneSidedTest, MissingPeersEndBothPhasesWithATimeout) {
  for (const int absent : {0, 2, 3}) {
    FakeGroup group(4, 2, 32, 32);
    const FakeStep step{.tokens_per_rank = 2, .num_experts = 4, .top_k = 1, .num_words = 1,
                        .active = RankMask::first(4)};
    World world{group, step, std::vector<FakeTokens>(4, FakeTokens::make(1, 0, {{0}, {3}}, 1))};
    std::vector<int> ranks = members(step.active);
    ranks.erase(ranks.begin() + absent);
    FakeGroup::run(ranks, [&](int rank, FakeMemory& memory) { world.dispatch(rank, memory); });
    RankMask missing;
    missing.set(absent);
    for (const int rank : ranks) {
      const StepStatus& status = world.statuses[rank];
      EXPECT_EQ(status.result, StepResult::kTimeout);
      EXPECT_EQ(status.phase, Phase::kDispatch);
      EXPECT_EQ(status.missing, missing);
      EXPECT_EQ(status.epoch, 1u);
    }
    // The absent rank finds the others' flags; it is their combine that never comes.
    FakeMemory memory;
    EXPECT_TRUE(world.dispatch(absent, memory).ok());
    const StepStatus status = world.combine(absent, memory);
    EXPECT_EQ(status.result, StepResult::kTimeout);
    EXPECT_EQ(status.phase, Phase::kCombine);
    EXPECT_EQ(status.missing, step.active - missing);
    for (const auto& row : world.results[absent]) EXPECT_TRUE(row.empty()) << "a sum was written";
  }
}

TEST(OneSidedTest, EveryDifferenceOfSignaturesIsFoundByEveryRank) {
  for (std::int32_t field = 0; field < kNumSignatureFields; ++field) {
    FakeGroup group(3, 2, 32, 32);
    const FakeStep step{.tokens_per_rank = 2, .num_experts = 4, .top_k = 1, .num_words = 1,
                        .active = RankMask::first(3)};
    World world{group, step, std::vector<FakeTokens>(3)};
    std::map<int, StepStatus> statuses;
    FakeGroup::run({2, 0, 1}, [&](int rank, FakeMemory& memory) {
      DispatchParams params = group.dispatch_params(rank, step, world.tokens[std::size_t(rank)]);
      if (rank == 1) params.signature.fields[field] += 5;
      FakeCoop coop;
      StepStatus shared;
      statuses[rank] = protocol::dispatch<FenceTransport>(coop, memory, params, shared);
    });
    const std::int32_t usual =
        group.dispatch_params(0, step, world.tokens[0]).signature.fields[field];
    for (int rank = 0; rank < 3; ++rank) {
      const StepStatus& status = statuses[rank];
      EXPECT_EQ(status.result, StepResult::kMismatch) << "field " << field << ", rank " << rank;
      EXPECT_EQ(status.field, field);
      EXPECT_EQ(status.peer, rank == 1 ? 0 : 1);
      EXPECT_EQ(status.want, rank == 1 ? usual + 5 : usual);
      EXPECT_EQ(status.got, rank == 1 ? usual : usual + 5);
    }
  }
}

// What a peer disagrees on explains more than who is late.
TEST(OneSidedTest, MismatchWinsOverATimeout) {
  FakeGroup group(3, 2, 32, 32);
  const FakeStep step{.tokens_per_rank = 2, .num_experts = 4, .top_k = 1, .num_words = 1,
                      .active = RankMask::first(3)};
  World world{group, step, std::vector<FakeTokens>(3)};
  PeerLine* line = group.workspace(0).line(0, 2);
  line->dispatch_flag = 1;
  line->signature = group.dispatch_params(2, step, world.tokens[2]).signature;
  line->signature.fields[kTopK] = 77;
  FakeMemory memory;
  const StepStatus status = world.dispatch(0, memory);
  EXPECT_EQ(status.result, StepResult::kMismatch);
  EXPECT_EQ(status.peer, 2);
  EXPECT_EQ(status.got, 77);
}

TEST(OneSidedTest, RowCountsOutsideTheBlockAreCorrupt) {
  for (const std::int32_t count : {-1, 3, 1 << 30}) {
    FakeGroup group(2, 2, 32, 32);
    const FakeStep step{.tokens_per_rank = 2, .num_experts = 4, .top_k = 1, .num_words = 1,
                        .active = RankMask::first(2)};
    World world{group, step, std::vector<FakeTokens>(2)};
    std::map<int, StepStatus> statuses;
    FakeGroup::run({1, 0}, [&](int rank, FakeMemory& memory) {
      if (rank == 0) group.workspace(1).line(0, 1)->num_rows = count;  // after rank 1 announced
      statuses[rank] = world.dispatch(rank, memory);
    });
    EXPECT_EQ(statuses[0].result, StepResult::kCorrupt) << count;
    EXPECT_EQ(statuses[0].peer, 1);
    EXPECT_EQ(statuses[0].want, 2);
    EXPECT_EQ(statuses[0].got, count);
    EXPECT_TRUE(statuses[1].ok());
  }
}

// Each rank names the first peer that differs.
TEST(OneSidedTest, DifferentCombineRowsAreAMismatch) {
  for (const bool size_differs : {true, false}) {
    FakeGroup group(3, 2, 32, 32);
    const FakeStep step{.tokens_per_rank = 2, .num_experts = 6, .top_k = 1, .num_words = 1,
                        .active = RankMask::first(3)};
    World world{group, step, std::vector<FakeTokens>(3)};
    FakeGroup::run({0, 1, 2}, [&](int rank, FakeMemory& memory) { world.dispatch(rank, memory); });
    std::map<int, StepStatus> statuses;
    FakeGroup::run({0, 2, 1}, [&](int rank, FakeMemory& memory) {
      CombineParams params = group.combine_params(rank, step, 0);
      if (rank > 0 && size_differs) params.row_bytes = 8;
      if (rank > 0 && !size_differs) params.format = kCombineFp32;
      FakeRows rows{params, world.results[rank]};
      FakeCoop coop;
      StepStatus shared;
      statuses[rank] = protocol::combine<FenceTransport>(coop, memory, rows, params, shared);
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(statuses[rank].result, StepResult::kMismatch);
      EXPECT_EQ(statuses[rank].phase, Phase::kCombine);
      EXPECT_EQ(statuses[rank].peer, rank == 0 ? 1 : 0);
      EXPECT_EQ(statuses[rank].field, static_cast<std::int32_t>(
                                          size_differs ? CombineField::kRowBytes
                                                       : CombineField::kFormat));
      const std::int64_t usual = size_differs ? 4 : kCombineBf16;
      const std::int64_t other = size_differs ? 8 : kCombineFp32;
      EXPECT_EQ(statuses[rank].want, rank == 0 ? usual : other);
      EXPECT_EQ(statuses[rank].got, rank == 0 ? other : usual);
    }
  }
}

// FR-012, FR-064: part by part, rank 0 is already in the next dispatch, with another T, while rank 1
// still gets its rows of the last combine.
TEST(OneSidedTest, NextDispatchOfAFastRankLeavesTheLastCombineAlone) {
  std::mt19937 random(8);
  for (const int next_tokens : {1, 3, 8}) {
    FakeGroup group(2, 8, 4 * (6 + 2), 4 * 6);
    FakeStep step{.tokens_per_rank = 8, .num_experts = 4, .top_k = 2, .num_words = 6,
                  .active = RankMask::first(2)};
    World world{group, step, random_tokens(2, step, 1, random)};
    FakeGroup::run({0, 1}, [&](int rank, FakeMemory& memory) {
      ASSERT_TRUE(world.dispatch(rank, memory).ok());
      world.write_expert_output(rank);
    });
    // Rank 1 has announced its combine and stands still before it gets its rows.
    FakeMemory memory;
    const auto num_tokens1 = static_cast<std::int32_t>(world.tokens[1].ids.size());
    const CombineParams slow = group.combine_params(1, step, num_tokens1);
    announce_combine<FenceTransport>(memory, slow, 1);
    ASSERT_TRUE(world.combine(0, memory).ok());
    // Rank 0 goes on: everything that it may do before it has to wait for rank 1.
    FakeStep next = step;
    next.tokens_per_rank = next_tokens;
    next.num_words = next_tokens == 3 ? 2 : 6;
    const FakeTokens full =
        FakeTokens::make(2, 0, Ids(static_cast<std::size_t>(next_tokens), {0, 3}), next.num_words);
    const DispatchParams fast = group.dispatch_params(0, next, full);
    route_tokens(fast);
    put_tokens<FenceTransport>(memory, fast, 0, 1);
    announce_dispatch<FenceTransport>(memory, fast, 2);

    ASSERT_TRUE(accept_combine<FenceTransport>(memory, slow, 1).ok());
    world.results[1].resize(world.tokens[1].ids.size());
    FakeRows rows{slow, world.results[1]};
    for (std::int32_t token = 0; token < num_tokens1; ++token) {
      const std::byte* sources[kMaxTopK];
      std::int32_t count = 0;
      for_each_hop(slow.workspace, token,
                   [&](const Hop& hop) { sources[count++] = slow.row(hop.rank, 1, hop.row); });
      rows.sum(token, sources, count);
    }
    ASSERT_NO_FATAL_FAILURE(world.expect_combined(1)) << "T of the next step " << next_tokens;
  }
}

// Rows of an earlier, larger step must not pass for rows of this one.
TEST(OneSidedTest, RowsOfALargerEarlierStepAreMarkedEmpty) {
  std::mt19937 random(9);
  FakeGroup group(2, 8, 64, 64);
  for (const int tokens_per_rank : {8, 1, 3, 8, 2}) {
    FakeStep step{.tokens_per_rank = tokens_per_rank, .num_experts = 2, .top_k = 2, .num_words = 2,
                  .active = RankMask::first(2)};
    World world{group, step, {}};
    const auto count = static_cast<std::size_t>(tokens_per_rank == 8 ? 8 : 0);
    for (int rank = 0; rank < 2; ++rank) {
      world.tokens.push_back(FakeTokens::make(1, rank, Ids(count, {0, 1}), 2));
    }
    ASSERT_NO_FATAL_FAILURE(run_step(world, random)) << "T " << tokens_per_rank;
  }
}

// FR-158: the gathered rows are the ranks' own numbers; masked ranks read as zero.
TEST(OneSidedTest, StatisticsAreGatheredUnchangedAndAbsentRanksAreZero) {
  constexpr int kExperts = 5;
  FakeGroup group(3, 2, 32, 32, kExperts);
  std::vector<std::vector<std::int32_t>> stats;
  for (int rank = 0; rank < 3; ++rank) {
    stats.push_back({rank, -rank, 1 << 30, 100 * rank, 0x7fffffff});
  }
  for (const bool masked : {false, true}) {
    FakeStep step{.tokens_per_rank = 2, .num_experts = 6, .top_k = 1, .num_words = 1,
                  .active = RankMask::first(3)};
    if (masked) step.active.reset(1);
    World world{group, step, std::vector<FakeTokens>(3)};
    FakeGroup::run(members(step.active), [&](int rank, FakeMemory& memory) {
      DispatchParams params = group.dispatch_params(rank, step, world.tokens[std::size_t(rank)]);
      params.eplb_local_stats = stats[std::size_t(rank)].data();
      FakeCoop coop;
      StepStatus shared;
      ASSERT_TRUE(protocol::dispatch<FenceTransport>(coop, memory, params, shared).ok());
      for (int src = 0; src < 3; ++src) {
        const auto* row = reinterpret_cast<const std::int32_t*>(
            params.workspace.own() + params.workspace.layout.eplb_row(src));
        const auto expected = step.active.test(src) ? stats[std::size_t(src)]
                                                    : std::vector<std::int32_t>(kExperts);
        EXPECT_EQ(std::vector<std::int32_t>(row, row + kExperts), expected) << "rank " << src;
      }
    });
    FakeGroup::run(members(step.active),
                   [&](int rank, FakeMemory& memory) { world.combine(rank, memory); });
  }
}

TEST(OneSidedTest, ThreadsOfATeamMarkEmptyRowsTogether) {
  constexpr int kRanks = 7;
  constexpr int kTokens = 3;
  constexpr int kTopK = 2;
  const std::int32_t counts[kRanks] = {0, 1, 2, 3, 0, 3, 1};
  for (int threads = 1; threads <= 9; ++threads) {
    std::vector<std::int32_t> ids(kRanks * kTokens * kTopK, 5);
    for (int thread = 0; thread < threads; ++thread) {
      mark_empty_rows(ids.data(), counts, kRanks, kTokens, kTopK, -9, thread, threads);
    }
    for (int src = 0; src < kRanks; ++src) {
      for (int row = 0; row < kTokens; ++row) {
        for (int k = 0; k < kTopK; ++k) {
          ASSERT_EQ(ids[static_cast<std::size_t>((src * kTokens + row) * kTopK + k)],
                    row < counts[src] ? 5 : -9);
        }
      }
    }
  }
}

TEST(OneSidedTest, ResetArmsTheOwnSliceForAnyEpoch) {
  for (const Epoch epoch : {0u, 41u, 0xffffffffu}) {
    FakeGroup group(3, 2, 32, 32, 0, epoch);
    for (int rank = 0; rank < 3; ++rank) {
      const Workspace workspace = group.workspace(rank);
      EXPECT_EQ(workspace.header()->magic, kSliceMagic);
      EXPECT_EQ(workspace.header()->epoch, epoch);
      for (int src = 0; src < 3; ++src) {
        const PeerLine* line = workspace.line(rank, src);
        EXPECT_EQ(line->dispatch_flag, epoch);
        EXPECT_FALSE(has_reached(line->dispatch_flag, next_epoch(epoch)));
        EXPECT_FALSE(has_reached(line->combine_flag, next_epoch(epoch)));
        EXPECT_EQ(workspace.recv_counts()[src], 0);
      }
    }
  }
}

}  // namespace
}  // namespace moe_ep::protocol
