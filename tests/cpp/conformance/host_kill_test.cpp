// A rank's process is killed in the middle of a step (FIELD.md, FR-088, FR-098).
#include <signal.h>

#include <chrono>

#include <gmock/gmock.h>

#include "support/host_suite_backend.hpp"
#include "support/resources.hpp"

#if !defined(__SANITIZE_THREAD__)

namespace moe_ep::testing {
namespace {

using ::testing::ElementsAre;

constexpr int kTimeoutSec = 2;
const HostSuiteBackend kBackend("processes", RankKind::kProcesses);

GroupStep small_step(std::uint64_t seed, int num_ranks) {
  return random_step(seed, num_ranks, 2 * num_ranks, 3, 40, 6);
}

MoEEpCommParams params_for(const GroupStep& step) {
  return {.num_experts = step.num_experts,
          .top_k = step.top_k,
          .max_tokens_per_rank = step.tokens_per_rank,
          .hidden_size = step.hidden};
}

HostAlltoAllConfig config_with(const std::shared_ptr<CommBackend>& comm) {
  HostAlltoAllConfig config;
  config.comm_backend = comm;
  config.timeout_sec = kTimeoutSec;
  config.enable_rank_mask = true;
  return config;
}

BootstrapConfig place(int rank, int num_ranks) {
  BootstrapConfig bootstrap;
  bootstrap.rank = rank;
  bootstrap.world_size = num_ranks;
  return bootstrap;
}

// Runs ranks of which `victim` kills itself; the others must be well.
void run_with_victim(int num_ranks, int victim, const RankBody& body) {
  const auto reports =
      spawn_ranks(RankKind::kProcesses, num_ranks, body, {.deadline = std::chrono::seconds(60)});
  for (const RankReport& report : reports) {
    if (report.rank == victim) {
      EXPECT_EQ(report.signal, SIGKILL);
    } else {
      EXPECT_TRUE(report.ok()) << "rank " << report.rank << ": " << report.failure;
    }
  }
}

void expect_names(const std::function<void()>& call, int victim, Phase phase) {
  const auto start = std::chrono::steady_clock::now();
  try {
    call();
    ADD_FAILURE() << "nobody missed the victim";
  } catch (const MoEEpTimeoutError& error) {
    EXPECT_THAT(error.ranks(), ElementsAre(victim));
    EXPECT_EQ(error.phase(), phase);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(kTimeoutSec + 10));
}

TEST(HostKillTest, SurvivorsNameTheRankAndGoOnWithoutIt) {
  const TempDir directory;
  const ScopedEnv rendezvous("MOE_EP_RENDEZVOUS_DIR", directory.path().c_str());
  for (const Phase phase : {Phase::kDispatch, Phase::kCombine}) {
    for (const int victim : {0, 2}) {
      run_with_victim(4, victim, [&](int rank, const std::shared_ptr<CommBackend>& world) {
        const auto survivors = world->split(rank == victim ? 1 : 0, rank);
        const auto before = Resources::now();
        const GroupStep usual = small_step(1, 4);
        auto comm =
            std::make_unique<HostAlltoAll>(place(rank, 4), params_for(usual), config_with(world));
        run_step(kBackend, *comm, usual);
        StepRunner runner(kBackend, *comm, usual);
        if (rank == victim && phase == Phase::kDispatch) ::raise(SIGKILL);
        if (phase == Phase::kDispatch) {
          expect_names([&] { runner.send(); }, victim, phase);
        } else {
          runner.dispatch();
          survivors->barrier();
          if (rank == victim) ::raise(SIGKILL);
          expect_names([&] { runner.combine(); }, victim, phase);
        }
        std::vector<int> active;
        for (int peer = 0; peer < 4; ++peer) {
          if (peer != victim) active.push_back(peer);
        }
        comm->recover(active, survivors);
        for (std::uint64_t seed = 2; seed < 12; ++seed) {
          GroupStep step = small_step(seed, 4);
          step.active.reset(victim);
          run_step(kBackend, *comm, step);
        }
        comm.reset();
        EXPECT_EQ(Resources::now(), before);
      });
    }
  }
  EXPECT_THAT(directory.entries(), ElementsAre());
}

// A restarted rank takes the dead one's place.
TEST(HostKillTest, RestartedRankRejoins) {
  constexpr int kVictim = 1;
  constexpr int kReplacement = 3;  // the fourth process
  run_with_victim(4, kVictim, [&](int process, const std::shared_ptr<CommBackend>& world) {
    const auto before_death = world->split(process == kReplacement ? 1 : 0, process);
    const int rank = process == kReplacement ? kVictim : process;
    const auto after = world->split(process == kVictim ? 1 : 0, rank);
    const GroupStep step = small_step(1, 3);
    std::unique_ptr<HostAlltoAll> comm;
    if (process == kReplacement) {
      comm = HostAlltoAll::rejoin(place(rank, 3), params_for(step), config_with(nullptr), {0, 1, 2},
                                  after);
    } else {
      comm = std::make_unique<HostAlltoAll>(place(rank, 3), params_for(step),
                                            config_with(before_death));
      for (std::uint64_t seed = 2; seed < 5; ++seed)
        run_step(kBackend, *comm, small_step(seed, 3));
      StepRunner runner(kBackend, *comm, step);
      runner.dispatch();
      if (process == kVictim) ::raise(SIGKILL);
      expect_names([&] { runner.combine(); }, kVictim, Phase::kCombine);
      std::byte* const slice = comm->slice();
      comm->recover({0, 1, 2}, after);
      EXPECT_EQ(comm->slice(), slice);
    }
    for (std::uint64_t seed = 5; seed < 30; ++seed)
      run_step(kBackend, *comm, small_step(seed, 3));
    after->barrier();
  });
}

// Whoever exits in the middle of a round without destroy() neither hangs nor crashes.
TEST(HostKillTest, ProcessesMayExitInTheMiddleOfARound) {
  const auto reports = spawn_ranks(
      RankKind::kProcesses, 3, [&](int rank, const std::shared_ptr<CommBackend>& world) {
        const GroupStep step = small_step(1, 3);
        auto comm =
            std::make_unique<HostAlltoAll>(place(rank, 3), params_for(step), config_with(world));
        StepRunner runner(kBackend, *comm, step);
        runner.dispatch();
        (void)comm.release();  // no destructor runs
      });
  EXPECT_TRUE(all_ok(reports));
}

}  // namespace
}  // namespace moe_ep::testing

#endif
