#include "comm/agree.hpp"

#include <functional>
#include <mutex>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/error.hpp>

#include "support/spawn_ranks.hpp"

namespace moe_ep::detail {
namespace {

using testing::all_ok;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RankKind;
using testing::spawn_ranks;
using ::testing::ThrowsMessage;

// A group of `size` whose allgather answers whatever the test wants.
class ScriptedBackend final : public CommBackend {
 public:
  using Answer = std::function<std::vector<std::string>(const std::string& own)>;
  ScriptedBackend(int rank, int size, Answer answer)
      : rank_(rank), size_(size), answer_(std::move(answer)) {}

  int get_rank() const override { return rank_; }
  int get_size() const override { return size_; }
  std::vector<std::string> allgather(std::string_view message) override {
    return answer_(std::string(message));
  }
  std::string bcast(std::string_view message, int) override { return std::string(message); }
  void barrier() override {}
  std::shared_ptr<CommBackend> split(int, int) override { return nullptr; }

 private:
  int rank_;
  int size_;
  Answer answer_;
};

TEST(CheckedAllgatherTest, ReturnsTheMessages) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 3, [](int rank, const auto& comm) {
    EXPECT_THAT(checked_allgather(*comm, rank, 3, std::string(std::size_t(rank), 'x')),
                ElementsAre("", "x", "xx"));
  })));
}

TEST(CheckedAllgatherTest, DetectsBackendsThatBreakTheContract) {
  const auto message_for = [](const ScriptedBackend::Answer& answer) -> std::string {
    ScriptedBackend comm(0, 2, answer);
    try {
      checked_allgather(comm, 0, 2, "m");
    } catch (const MoEEpError& error) {
      return error.what();
    }
    return "accepted";
  };
  std::string first;
  std::string second;
  ScriptedBackend capture_first(0, 2, [&](const auto& own) {
    first = own;
    return std::vector{own};
  });
  ScriptedBackend capture_second(1, 2, [&](const auto& own) {
    second = own;
    return std::vector{own};
  });
  EXPECT_THROW(checked_allgather(capture_first, 0, 2, "m"), MoEEpError);
  EXPECT_THROW(checked_allgather(capture_second, 1, 2, "n"), MoEEpError);

  using Messages = std::vector<std::string>;
  EXPECT_EQ(message_for([&](const auto&) { return Messages{first, second}; }), "accepted");
  const std::string contract =
      "comm backend: allgather must return every rank's message in rank order, got ";
  EXPECT_EQ(message_for([&](const auto&) { return Messages{second, first}; }),
            contract + "rank 1's message at position 0");
  EXPECT_EQ(message_for([&](const auto&) { return Messages{first, first}; }),
            contract + "rank 0's message at position 1");
  EXPECT_EQ(message_for([&](const auto&) { return Messages{first}; }),
            contract + "1 messages in a group of 2");
  EXPECT_EQ(message_for([&](const auto&) { return Messages{first, second.substr(0, 5)}; }),
            contract + "a message of 5 bytes at position 1");
  EXPECT_EQ(message_for([&](const auto&) { return Messages{first, std::string(40, 'z')}; }),
            contract + "a foreign message at position 1");
}

TEST(CheckedAllgatherTest, DetectsAGroupOfAnotherSize) {
  std::string of_three;
  ScriptedBackend three(1, 3, [&](const auto& own) {
    of_three = own;
    return std::vector{own};
  });
  EXPECT_THROW(checked_allgather(three, 1, 3, ""), MoEEpError);
  ScriptedBackend two(0, 2, [&](const auto& own) { return std::vector{own, of_three}; });
  EXPECT_THAT(
      [&] { checked_allgather(two, 0, 2, ""); },
      ThrowsMessage<MoEEpError>(HasSubstr("a message of a group of 3 ranks at position 1 of 2")));
}

TEST(GatherOutcomesTest, ReturnsEveryPayloadWhenAllSucceed) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 3, [](int rank, const auto& comm) {
    const std::string payload = std::string("\0p", 2) + std::to_string(rank);
    EXPECT_THAT(
        gather_outcomes(*comm, "test", std::nullopt, payload),
        ElementsAre(std::string("\0p0", 3), std::string("\0p1", 3), std::string("\0p2", 3)));
  })));
}

TEST(GatherOutcomesTest, EveryRankThrowsTheSameTextThatNamesRanksAndReasons) {
  std::mutex mutex;
  std::set<std::string> texts;
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 4, [&](int rank, const auto& comm) {
    std::optional<std::string> failure;
    if (rank == 1) failure = "create: no memory";  // its own prefix is not repeated
    if (rank == 0 || rank == 3) failure = "no permission";
    try {
      gather_outcomes(*comm, "create", failure, "ignored");
      ADD_FAILURE() << "rank " << rank << " succeeded";
    } catch (const MoEEpError& error) {
      const std::lock_guard lock(mutex);
      texts.insert(error.what());
    }
  })));
  EXPECT_THAT(texts, ElementsAre("create: must succeed on every rank, got a failure on ranks 0 and "
                                 "3: no permission; rank 1: no memory"));
}

TEST(GatherOutcomesTest, AnEmptyReasonIsStillAFailure) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 2, [&](int rank, const auto& comm) {
    const auto failure = rank == 1 ? std::optional<std::string>("") : std::nullopt;
    EXPECT_THROW(gather_outcomes(*comm, "create", failure), MoEEpError);
  })));
}

TEST(GatherOutcomesTest, DetectsRanksInDifferentOperations) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 2, [&](int rank, const auto& comm) {
    const std::string operation = rank == 0 ? "create" : "restore";
    EXPECT_THAT([&] { gather_outcomes(*comm, operation, std::nullopt); },
                ThrowsMessage<MoEEpError>(HasSubstr("every rank must be in the same operation")));
  })));
}

TEST(FailureOfTest, ReturnsWhatWasThrown) {
  EXPECT_EQ(failure_of([] {}), std::nullopt);
  EXPECT_EQ(failure_of([] { throw MoEEpError("why"); }), "why");
}

}  // namespace
}  // namespace moe_ep::detail
