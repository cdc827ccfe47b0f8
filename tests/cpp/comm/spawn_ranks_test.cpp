// The test support itself: a rank's end must be reported, whatever it is.
#include "support/spawn_ranks.hpp"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/resources.hpp"

namespace moe_ep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(SpawnRanksTest, ReportsEachRanksException) {
  for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
    const auto reports = spawn_ranks(kind, 3, [](int rank, const auto& comm) {
      comm->barrier();
      if (rank == 1) throw std::runtime_error("one is unwell");
    });
    EXPECT_TRUE(reports[0].ok() && reports[2].ok()) << kind;
    EXPECT_EQ(reports[1].failure, "one is unwell") << kind;
    EXPECT_FALSE(all_ok(reports)) << kind;
  }
}

TEST(SpawnRanksTest, ReportsHowAProcessDied) {
  const auto reports = spawn_ranks(RankKind::kProcesses, 3, [](int rank, const auto&) {
    if (rank == 0) ::raise(SIGKILL);
    if (rank == 1) ::_exit(7);
  });
  EXPECT_EQ(reports[0].signal, SIGKILL);
  EXPECT_FALSE(reports[0].ok());
  EXPECT_EQ(reports[1].failure, "ended with status 7");
  EXPECT_TRUE(reports[2].ok());
}

TEST(SpawnRanksTest, KillsAndReportsLateProcesses) {
  const auto start = std::chrono::steady_clock::now();
  const auto reports = spawn_ranks(RankKind::kProcesses, 2,
                                   [](int rank, const auto&) {
                                     while (rank == 1)
                                       ::pause();
                                   },
                                   {.deadline = 300ms});
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  EXPECT_TRUE(reports[0].ok());
  EXPECT_EQ(reports[1].failure, "still running after 300 ms, killed");
}

TEST(SpawnRanksTest, FailedAssertionInAChildFailsItsRank) {
  const auto reports = spawn_ranks(RankKind::kProcesses, 2, [](int rank, const auto&) {
    EXPECT_NE(rank, 1) << "this failure is expected, it is the test's subject";
  });
  EXPECT_TRUE(reports[0].ok());
  EXPECT_THAT(reports[1].failure, HasSubstr("an assertion failed"));
}

TEST(SpawnRanksTest, LateThreadsEndTheProgramWithAReport) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(spawn_ranks(RankKind::kThreads, 2,
                           [](int rank, const auto&) {
                             while (rank == 1)
                               ::pause();
                           },
                           {.deadline = 200ms}),
               "rank 0: ok\nrank 1: still running after 200 ms");
}

TEST(SpawnRanksTest, LeavesNothingBehind) {
  const Resources before = Resources::now();
  for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
    EXPECT_TRUE(all_ok(spawn_ranks(kind, 4, [](int, const auto& comm) { comm->barrier(); })));
  }
  EXPECT_EQ(Resources::now(), before);
}

}  // namespace
}  // namespace moe_ep::testing
