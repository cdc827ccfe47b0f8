// A step of a FakeGroup: runs each rank's phases and checks what comes of them against loops over
// tokens and ranks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "protocol/one_sided.hpp"
#include "protocol/transport/fence.hpp"
#include "support/fake_group.hpp"

namespace moe_ep::testing {

using Ids = std::vector<std::vector<std::int64_t>>;

inline int owner_of(std::int64_t id, int num_experts, int num_ranks) {
  if (id < 0 || id >= num_experts) return -1;
  std::int64_t end = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    end += num_experts / num_ranks + (rank < num_experts % num_ranks ? 1 : 0);
    if (id < end) return rank;
  }
  return -1;
}

// One step of a FakeGroup, and what must come of it.
struct FakeWorld {
  FakeGroup& group;
  FakeStep step;
  std::vector<FakeTokens> tokens;  // of each rank
  std::map<int, protocol::DispatchParams> dispatched = {};
  std::map<int, protocol::StepStatus> statuses = {};
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

  protocol::StepStatus dispatch(int rank, FakeMemory& memory) {
    FakeCoop coop;
    protocol::StepStatus shared;
    dispatched[rank] = group.dispatch_params(rank, step, tokens[static_cast<std::size_t>(rank)]);
    if (step.transport == Transport::kLamport) {
      return statuses[rank] =
                 protocol::lamport_dispatch(coop, memory, dispatched[rank], shared);
    }
    if (step.transport == Transport::kCounted) {
      return statuses[rank] = protocol::counted_dispatch(coop, memory, dispatched[rank], shared);
    }
    return statuses[rank] =
               protocol::dispatch<protocol::FenceTransport>(coop, memory, dispatched[rank], shared);
  }

  // Every expert adds a word of its own to what it received.
  static std::uint32_t expert(int rank, std::uint32_t value) {
    return value * 3 + static_cast<std::uint32_t>(rank) * 0x10001u;
  }

  void write_expert_output(int rank) {
    const protocol::CombineParams params = group.combine_params(rank, step, 0);
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

  protocol::StepStatus combine(int rank, FakeMemory& memory) {
    FakeCoop coop;
    protocol::StepStatus shared;
    const auto num_tokens = tokens[static_cast<std::size_t>(rank)].ids.size();
    results[rank].resize(num_tokens);
    const protocol::CombineParams params =
        group.combine_params(rank, step, static_cast<std::int32_t>(num_tokens));
    FakeRows rows{params, results[rank]};
    if (step.transport == Transport::kLamport) {
      return statuses[rank] = protocol::lamport_combine(coop, memory, rows, params, shared);
    }
    if (step.transport == Transport::kCounted) {
      return statuses[rank] = protocol::counted_combine(coop, memory, rows, params, shared);
    }
    return statuses[rank] =
               protocol::combine<protocol::FenceTransport>(coop, memory, rows, params, shared);
  }

  void expect_dispatched(int rank) const {
    const protocol::DispatchParams& params = dispatched.at(rank);
    for (int src = 0; src < group.num_ranks(); ++src) {
      const auto list = step.active.test(src) ? sent(src, rank) : std::vector<int>{};
      ASSERT_EQ(params.workspace.recv_counts()[src], static_cast<int>(list.size()));
      for (int row = 0; row < step.tokens_per_rank; ++row) {
        // The token that lies in this row, or -1.
        int token = -1;
        if (step.transport == Transport::kLamport) {
          if (std::find(list.begin(), list.end(), row) != list.end()) token = row;
        } else if (row < static_cast<int>(list.size())) {
          token = list[std::size_t(row)];
        }
        const bool empty = token < 0;
        for (int k = 0; k < step.top_k; ++k) {
          const auto id = static_cast<std::int32_t>(FakeGroup::received(params, 1, src, row, k));
          std::int64_t want = step.invalid_expert_id;
          if (!empty) {
            const std::int64_t given =
                tokens[static_cast<std::size_t>(src)]
                    .ids[static_cast<std::size_t>(token)][static_cast<std::size_t>(k)];
            if (owner_of(given, step.num_experts, group.num_ranks()) >= 0) want = given;
          }
          ASSERT_EQ(id, want) << "rank " << rank << ", block " << src << ", row " << row;
        }
        if (empty) continue;
        const auto& words =
            tokens[static_cast<std::size_t>(src)].rows[std::size_t(token)];
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

inline std::vector<int> members_of(const RankMask& mask) {
  std::vector<int> ranks;
  mask.for_each([&](int rank) { ranks.push_back(rank); });
  return ranks;
}

// A whole step, ranks starting in a random order in both phases.
inline void run_step(FakeWorld& world, std::mt19937& random) {
  std::vector<int> ranks = members_of(world.step.active);
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

inline Ids random_ids(int num_tokens, int top_k, int num_experts, std::mt19937& random) {
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

inline std::vector<FakeTokens> random_tokens(int num_ranks, const FakeStep& step,
                                             std::uint32_t salt, std::mt19937& random) {
  std::vector<FakeTokens> tokens;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int count = static_cast<int>(random() % unsigned(step.tokens_per_rank + 1));
    tokens.push_back(FakeTokens::make(
        salt, rank, random_ids(count, step.top_k, step.num_experts, random), step.num_words));
  }
  return tokens;
}

}  // namespace moe_ep::testing
