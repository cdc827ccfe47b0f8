// The worker threads of a rank.
#include "host/team.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <atomic>
#include <system_error>
#include <vector>

#include "support/resources.hpp"

namespace moe_ep::host {
namespace {

// How often each thread ran in `rounds` jobs.
std::vector<int> run_rounds(Team& team, int rounds) {
  std::vector<std::atomic<int>> counts(static_cast<std::size_t>(team.num_threads()));
  for (int round = 0; round < rounds; ++round) {
    team.run([&](int thread) { ++counts[static_cast<std::size_t>(thread)]; });
  }
  return {counts.begin(), counts.end()};
}

TEST(TeamTest, EveryThreadRunsOnceAJob) {
  for (int num_threads = 1; num_threads <= 5; ++num_threads) {
    Team team(num_threads);
    EXPECT_EQ(run_rounds(team, 200), std::vector<int>(static_cast<std::size_t>(num_threads), 200));
  }
}

TEST(TeamTest, TeamsWithoutAJobStartNoThread) {
  for (int i = 0; i < 1000; ++i)
    Team team(1024);
}

// What a thread wrote before the barrier, all see behind it; a job's results are the caller's.
TEST(TeamTest, BarriersOrderWhatThreadsWrite) {
  constexpr int kThreads = 4;
  Team team(kThreads);
  for (int round = 0; round < 50; ++round) {
    SpinBarrier barrier(kThreads);
    std::vector<int> values(kThreads);
    std::vector<int> sums(kThreads);
    team.run([&](int thread) {
      TeamCoop coop(thread, kThreads, barrier);
      for (int step = 1; step <= 20; ++step) {
        values[static_cast<std::size_t>(thread)] = step * (thread + 1);
        coop.sync();
        int sum = 0;
        for (const int value : values)
          sum += value;
        sums[static_cast<std::size_t>(thread)] += sum;
        coop.sync();
      }
    });
    EXPECT_EQ(sums, std::vector<int>(kThreads, 210 * 10));
  }
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// `test` in a child process; true when it returned true there.
template <class Test>
bool passes_in_child(Test&& test) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(test() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(TeamTest, ForkedChildHasWorkersOfItsOwn) {
  Team team(3);
  const std::vector<int> expected(3, 10);
  EXPECT_EQ(run_rounds(team, 10), expected);
  EXPECT_TRUE(passes_in_child([&] { return run_rounds(team, 10) == expected; }));
  EXPECT_EQ(run_rounds(team, 10), expected);
}

// A worker that cannot be started is an error, and the next job starts them all again.
TEST(TeamTest, FailureToStartWorkersLeavesTheTeamUsable) {
  EXPECT_TRUE(passes_in_child([] {
    constexpr int kThreads = 64;
    Team team(kThreads);
    rlimit usual{};
    ::getrlimit(RLIMIT_AS, &usual);
    // Room for the stacks of some threads, not of all.
    rlimit tight = usual;
    tight.rlim_cur = testing::virtual_bytes() + (std::size_t{100} << 20);
    ::setrlimit(RLIMIT_AS, &tight);
    bool failed = false;
    try {
      run_rounds(team, 1);
    } catch (const std::system_error&) {
      failed = true;
    }
    ::setrlimit(RLIMIT_AS, &usual);
    return failed && run_rounds(team, 3) == std::vector<int>(kThreads, 3);
  }));
}
#endif

}  // namespace
}  // namespace moe_ep::host
