#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/comm_backend.hpp>
#include <moe_ep/error.hpp>

#include "support/spawn_ranks.hpp"

namespace moe_ep {
namespace {

using namespace std::chrono_literals;
using testing::all_ok;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RankKind;
using testing::spawn_ranks;

TEST(LocalGroupTest, RefusesImpossibleArguments) {
  EXPECT_THROW(LocalGroup(0), std::invalid_argument);
  EXPECT_THROW(LocalGroup(-3), std::invalid_argument);
  EXPECT_THROW(LocalGroup(2, 0ms), std::invalid_argument);
  LocalGroup group(2);
  EXPECT_THROW(group.backend(2), std::invalid_argument);
  EXPECT_THROW(group.backend(-1), std::invalid_argument);
}

TEST(LocalGroupTest, SameRankIsTheSameObject) {
  LocalGroup group(3);
  EXPECT_EQ(group.backend(1), group.backend(1));
  EXPECT_NE(group.backend(1), group.backend(2));
  EXPECT_EQ(group.backend(1)->identity(), group.backend(1)->identity());
  EXPECT_EQ(group.size(), 3);
}

TEST(LocalGroupTest, BackendOutlivesTheGroup) {
  std::shared_ptr<CommBackend> comm;
  {
    LocalGroup group(1);
    comm = group.backend(0);
  }
  EXPECT_THAT(comm->allgather("x"), ElementsAre("x"));
}

TEST(LocalGroupTest, LongestTimeoutDoesNotOverflow) {
  LocalGroup group(2, std::chrono::milliseconds::max());
  std::thread other([&] { group.backend(1)->barrier(); });
  group.backend(0)->barrier();
  other.join();
}

TEST(LocalGroupTest, TimeoutNamesTheMissingRanksOnEveryRankAndEndsTheGroup) {
  LocalGroup group(4, 200ms);
  std::vector<std::thread> threads;
  for (const int rank : {0, 2}) {
    threads.emplace_back([&, rank] {
      try {
        group.backend(rank)->barrier();
        ADD_FAILURE() << "rank " << rank << " passed the barrier";
      } catch (const MoEEpTimeoutError& error) {
        EXPECT_THAT(error.ranks(), ElementsAre(1, 3));
        EXPECT_EQ(error.phase(), Phase::kSetup);
        EXPECT_THAT(error.what(), HasSubstr("LocalGroup.barrier: every rank must enter within 200 "
                                            "ms, got nothing from ranks 1 and 3"));
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(group.backend(1)->barrier(), MoEEpTimeoutError);
  EXPECT_THROW(group.backend(0)->allgather("x"), MoEEpTimeoutError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 150ms);
}

TEST(LocalGroupTest, DifferentCallsFailOnEveryRank) {
  LocalGroup group(2, 10s);
  std::string text;
  std::thread other([&] {
    try {
      group.backend(1)->barrier();
    } catch (const MoEEpError& error) {
      text = error.what();
    }
  });
  EXPECT_THROW(group.backend(0)->bcast("x", 1), MoEEpError);
  other.join();
  EXPECT_THAT(text, AllOf(HasSubstr("every rank must call the same operation"),
                          HasSubstr("bcast(root 1) on rank 0 and barrier on rank 1")));
}

TEST(LocalGroupTest, DifferentRootsFailOnEveryRank) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 2, [](int rank, const auto& comm) {
    EXPECT_THROW(comm->bcast("x", rank), MoEEpError);
  })));
}

TEST(LocalGroupTest, SecondThreadInTheSameRankIsRefused) {
  LocalGroup group(2, 300ms);
  int num_refused = 0;
  int num_timeouts = 0;
  std::mutex mutex;
  const auto enter = [&] {
    try {
      group.backend(0)->barrier();
    } catch (const std::logic_error&) {
      const std::lock_guard lock(mutex);
      ++num_refused;
    } catch (const MoEEpTimeoutError&) {
      const std::lock_guard lock(mutex);
      ++num_timeouts;
    }
  };
  std::thread first(enter);
  std::thread second(enter);
  first.join();
  second.join();
  EXPECT_EQ(num_refused, 1);
  EXPECT_EQ(num_timeouts, 1);
}

}  // namespace
}  // namespace moe_ep
