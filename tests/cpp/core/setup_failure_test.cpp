// Construction, recover(), rejoin() and checkpoints whose comm backend fails at any call, or whose
// process has run out of descriptors or address space: every rank throws, nothing is left behind,
// nobody touches memory that is gone, and a second attempt works.
#include <gmock/gmock.h>
#include <moe_ep/host.hpp>

#include "support/hooked_backend.hpp"
#include "support/host_suite_backend.hpp"
#include "support/limits.hpp"
#include "support/resources.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Values;

constexpr int kNumRanks = 3;
constexpr int kMaxCalls = 12;  // more than any of these operations makes

const HostSuiteBackend kBackend("host", RankKind::kThreads);

GroupStep step_of(const std::vector<int>& active) {
  GroupStep step = random_step(1, kNumRanks, 6, 2, 64, 6);
  step.active = RankMask();
  for (const int rank : active)
    step.active.set(rank);
  return step;
}

std::unique_ptr<HostAlltoAll> make(int rank, std::shared_ptr<CommBackend> comm) {
  HostAlltoAllConfig config;
  config.comm_backend = std::move(comm);
  config.timeout_sec = 20;
  config.enable_rank_mask = true;
  return std::make_unique<HostAlltoAll>(
      BootstrapConfig{.world_size = kNumRanks, .rank = rank},
      MoEEpCommParams{.num_experts = 6, .top_k = 2, .max_tokens_per_rank = 6, .hidden_size = 64},
      config);
}

std::unique_ptr<HostAlltoAll> rejoin(int rank, std::shared_ptr<CommBackend> comm) {
  HostAlltoAllConfig config;
  config.timeout_sec = 20;
  config.enable_rank_mask = true;
  return HostAlltoAll::rejoin(
      {.world_size = kNumRanks, .rank = rank},
      {.num_experts = 6, .top_k = 2, .max_tokens_per_rank = 6, .hidden_size = 64}, config,
      {0, 1, 2}, std::move(comm));
}

// What a call threw: empty if nothing.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return *error.what() ? error.what() : "an error without text";
  }
  return {};
}

class SetupFailureTest : public ::testing::TestWithParam<RankKind> {
 protected:
  // A group of the ranks that pass the same color, which fails on rank 1 at call `call` if that is
  // not 0. A process that then drops it ends it; threads, who cannot leave a group, call something
  // else.
  std::shared_ptr<CommBackend> group(CommBackend& world, int color, int call) {
    const auto inner = world.split(color, world.get_rank());
    HookedBackend::Before before;
    if (call > 0 && world.get_rank() == 1) {
      before = [inner, call, threads = GetParam() == RankKind::kThreads](int now) {
        if (now == call && threads) inner->barrier();  // where the others allgather
        throw_at(call)(now);
      };
    }
    return std::make_shared<HookedBackend>(inner, before);
  }
};

TEST_P(SetupFailureTest, ConstructionThatFailsAtAnyCallCanBeTriedAgain) {
  int num_failures = 0;
  for (int call = 1; call <= kMaxCalls; ++call) {
    const auto reports = spawn_ranks(GetParam(), kNumRanks, [&](int rank, const auto& world) {
      const auto second = world->split(0, rank);
      const Resources before = Resources::now();
      auto hooked = group(*world, 0, call);
      const std::string error = error_of([&] { make(rank, hooked); });
      hooked.reset();
      if (error.empty()) throw std::runtime_error("made");
      second->barrier();
      if (GetParam() == RankKind::kProcesses) {
        EXPECT_EQ(Resources::now(), before);
      }
      const auto comm = make(rank, second);
      run_step(kBackend, *comm, step_of({0, 1, 2}));
      second->barrier();
    });
    if (reports[0].failure == "made") break;
    EXPECT_TRUE(all_ok(reports)) << "call " << call;
    ++num_failures;
  }
  EXPECT_GE(num_failures, 4);
  EXPECT_LT(num_failures, kMaxCalls);
}

enum class Return { kAll, kWithoutOne, kRejoined };

// Rank 1's backend fails at call `call` of a recover(). Throws "recovered" if there is no such
// call.
void recover_twice(int rank, Return kind, int call,
                   const std::function<std::shared_ptr<CommBackend>(int color, int call)>& group) {
  const bool away = kind == Return::kWithoutOne && rank == 2;
  const std::vector<int> active =
      kind == Return::kWithoutOne ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
  auto first = group(away ? 1 : 0, away ? 0 : call);
  auto second = group(away ? 1 : 0, 0);
  std::shared_ptr<CommBackend> original = group(0, 0);
  auto comm = make(rank, original);
  run_step(kBackend, *comm, step_of({0, 1, 2}));
  const Resources before = Resources::now();
  original->barrier();
  const bool comes_anew = kind == Return::kRejoined && rank == 2;
  if (comes_anew) comm.reset();
  const auto attempt = [&](const std::shared_ptr<CommBackend>& with) {
    if (comes_anew) {
      comm = rejoin(rank, with);
    } else if (!away) {
      comm->recover(active, with);
    }
  };
  const std::string error = error_of([&] { attempt(first); });
  first.reset();
  if (error.empty() && !away) {
    if (kind == Return::kWithoutOne) original->barrier();
    throw std::runtime_error("recovered");
  }
  if (away) {
    original->barrier();
    return;
  }
  // Nothing was changed, or the instance says what it needs.
  if (comm != nullptr && call > 1) {
    EXPECT_THAT(error_of([&] { run_step(kBackend, *comm, step_of({0, 1, 2})); }),
                HasSubstr("recover"));
  }
  second->barrier();
  attempt(second);
  run_step(kBackend, *comm, step_of(active));
  second->barrier();
  if (kind == Return::kAll) {
    // The group that made the instance is kept no longer.
    EXPECT_EQ(Resources::now().num_shared_mappings, before.num_shared_mappings);
  }
  if (kind == Return::kWithoutOne) original->barrier();
}

TEST_P(SetupFailureTest, RecoverThatFailsAtAnyCallCanBeTriedAgain) {
  for (const Return kind : {Return::kAll, Return::kWithoutOne, Return::kRejoined}) {
    int num_failures = 0;
    for (int call = 1; call <= kMaxCalls; ++call) {
      const auto reports = spawn_ranks(GetParam(), kNumRanks, [&](int rank, const auto& world) {
        recover_twice(rank, kind, call,
                      [&](int color, int at) { return group(*world, color, at); });
      });
      if (reports[0].failure == "recovered") break;
      EXPECT_TRUE(all_ok(reports)) << "call " << call << ", " << static_cast<int>(kind);
      ++num_failures;
    }
    EXPECT_GE(num_failures, 3) << static_cast<int>(kind);
    EXPECT_LT(num_failures, kMaxCalls);
  }
}

TEST_P(SetupFailureTest, RestoreThatFailsAtAnyCallCanBeTriedAgain) {
  int num_failures = 0;
  for (int call = 1; call <= kMaxCalls; ++call) {
    const auto reports = spawn_ranks(GetParam(), kNumRanks, [&](int rank, const auto& world) {
      const auto original = group(*world, 0, 0);
      auto first = group(*world, 0, call);
      const auto second = group(*world, 0, 0);
      const auto comm = make(rank, original);
      run_step(kBackend, *comm, step_of({0, 1, 2}));
      comm->checkpoint_prepare();
      const Resources before = Resources::now();
      const std::string error = error_of([&] { comm->checkpoint_restore(first); });
      if (error.empty()) throw std::runtime_error("restored");
      first.reset();
      original->barrier();
      if (GetParam() == RankKind::kProcesses) {
        EXPECT_EQ(Resources::now().num_shared_mappings, before.num_shared_mappings);
      }
      EXPECT_NE(error_of([&] { run_step(kBackend, *comm, step_of({0, 1, 2})); }), "");
      comm->checkpoint_restore(second);
      run_step(kBackend, *comm, step_of({0, 1, 2}));
      second->barrier();
    });
    if (reports[0].failure == "restored") break;
    EXPECT_TRUE(all_ok(reports)) << "call " << call;
    ++num_failures;
  }
  EXPECT_GE(num_failures, 3);
  EXPECT_LT(num_failures, kMaxCalls);
}

INSTANTIATE_TEST_SUITE_P(All, SetupFailureTest, Values(RankKind::kThreads, RankKind::kProcesses),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace moe_ep::testing
