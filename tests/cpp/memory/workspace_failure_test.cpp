// A SymmetricWorkspace that cannot be made: every rank throws, and nothing is left behind.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/comm_backend.hpp>
#include <moe_ep/error.hpp>
#include <moe_ep/workspace.hpp>

#include "memory/member_info.hpp"
#include "support/hooked_backend.hpp"
#include "support/limits.hpp"
#include "support/resources.hpp"
#include "support/spawn_ranks.hpp"

namespace moe_ep {
namespace {

using namespace std::chrono_literals;
using testing::all_ok;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::HookedBackend;
using ::testing::IsEmpty;
using testing::RankKind;
using testing::Resources;
using testing::ScopedEnv;
using testing::spawn_ranks;
using ::testing::Values;

constexpr std::size_t kBytes = 100'000;

template <class Error = MoEEpError>
std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

class WorkspaceFailure : public ::testing::TestWithParam<RankKind> {
 protected:
  ~WorkspaceFailure() override {
    EXPECT_EQ(Resources::now(), resources_);
    EXPECT_THAT(directory_.entries(), IsEmpty());
  }

  const Resources resources_ = Resources::now();
  testing::TempDir directory_;
  ScopedEnv env_{"MOE_EP_RENDEZVOUS_DIR", directory_.path().c_str()};
};

TEST_P(WorkspaceFailure, BadArgumentOnOneRankIsNamedOnEveryRank) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 3, [&](int rank, const auto& comm) {
    EXPECT_THAT(failure_of([&] { SymmetricWorkspace::create_host(*comm, rank == 2 ? 0 : kBytes); }),
                HasSubstr("SymmetricWorkspace.create_host: must succeed on every rank, got a "
                          "failure on rank 2: bytes must be positive, got 0"));
    const std::vector<std::pair<int, std::vector<int>>> cases = {
        {3, {0, 1}}, {3, {0, 2, 1}}, {2, {0, 1, 2}}, {300, {0, 1, 2}}, {0, {0, 1, 2}}, {3, {}}};
    for (const auto& [num_ranks, members] : cases) {
      const auto call = [&, n = num_ranks, m = members] {
        SymmetricWorkspace::create_host(*comm, kBytes, rank == 1 ? n : 3,
                                        rank == 1 ? m : std::vector<int>{0, 1, 2});
      };
      EXPECT_THAT(failure_of(call), HasSubstr("got a failure on rank 1: "));
    }
    EXPECT_THAT(
        failure_of([&] { SymmetricWorkspace::create_host(*comm, std::size_t{1} << 62); }),
        HasSubstr("ranks 0, 1 and 2: shared memory: 3 slices must fit into the address space"));
  })));
}

TEST_P(WorkspaceFailure, FreeMemoryMustHoldTheSlicesOfAllRanks) {
  constexpr std::size_t kHuge = std::size_t{1} << 44;
  // Should the check be lost, the limit stops the allocation before the machine runs out.
  const testing::ScopedFileSizeLimit limit(1 << 30);
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 3, [&](int, const auto& comm) {
    EXPECT_THAT(failure_of([&] { SymmetricWorkspace::create_host(*comm, kHuge); }),
                HasSubstr("all slices must fit into free memory, got " + std::to_string(3 * kHuge) +
                          " bytes wanted"));
  })));
}

TEST_P(WorkspaceFailure, DifferentArgumentsAreBadArgumentsOnEveryRank) {
  using Bad = std::invalid_argument;
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 2, [&](int rank, const auto& comm) {
    EXPECT_THAT(failure_of<Bad>([&] { SymmetricWorkspace::create_host(*comm, rank ? 64 : 128); }),
                HasSubstr("bytes must be equal on every rank, got 128 on rank 0 and 64 on rank 1"));
    EXPECT_THAT(
        failure_of<Bad>([&] { SymmetricWorkspace::create_host(*comm, 64, rank ? 3 : 4, {0, 1}); }),
        HasSubstr("num_ranks must be equal on every rank, got 4 on rank 0 and 3"));
    EXPECT_THAT(
        failure_of<Bad>([&] { SymmetricWorkspace::create_host(*comm, 64, 4, {0, rank ? 1 : 3}); }),
        HasSubstr("members must be equal on every rank, got ranks 0 and 3 on rank 0 and "
                  "ranks 0 and 1 on rank 1"));
  })));
}

TEST_P(WorkspaceFailure, BackendThatThrowsAtAnyCallLeavesNothingBehind) {
  int num_failures = 0;
  for (int call = 1; call <= 8; ++call) {
    const auto reports = spawn_ranks(
        GetParam(), 3,
        [&](int rank, const auto& comm) {
          HookedBackend hooked(comm, rank == 1 ? testing::throw_at(call) : HookedBackend::Before());
          Resources before = Resources::now();
          try {
            SymmetricWorkspace::create_host(hooked, kBytes);
          } catch (...) {
            if (GetParam() == RankKind::kProcesses) {
              if (rank == 0) before.num_fds = Resources::now().num_fds;  // its group has ended
              EXPECT_EQ(Resources::now(), before);
            }
            throw;
          }
        },
        {.comm_timeout = 200ms});
    const bool failed = reports[1].failure == "injected failure";
    num_failures += failed ? 1 : 0;
    for (const auto& report : reports)
      EXPECT_EQ(report.ok(), !failed) << report.failure;
    EXPECT_EQ(Resources::now(), resources_) << "call " << call;
  }
  EXPECT_GE(num_failures, 3);
  EXPECT_LT(num_failures, 8);
}

TEST_P(WorkspaceFailure, BackendThatBreaksItsContractIsDetected) {
  struct Case {
    std::function<void(std::vector<std::string>&)> change;
    std::string text;
  };
  const std::vector<Case> cases = {
      {[](auto& all) { std::swap(all[0], all[1]); }, "got rank 1's message at position 0"},
      {[](auto& all) { all.pop_back(); }, "got 1 messages in a group of 2"},
      {[](auto& all) { all.push_back("x"); }, "got 3 messages in a group of 2"},
      {[](auto& all) { all[1].clear(); }, "got a message of 0 bytes at position 1"},
      {[](auto& all) { all[1].pop_back(); }, "must run the same version, got "}};
  for (const Case& test : cases) {
    EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 2, [&](int, const auto& comm) {
      HookedBackend hooked(comm, {}, [&](int call, auto& result) {
        if (call == 1) test.change(result);
      });
      EXPECT_THAT(failure_of([&] { SymmetricWorkspace::create_host(hooked, kBytes); }),
                  HasSubstr(test.text));
    })));
  }
}

// A rank says where its slice is mapped, and how long it is.
TEST_P(WorkspaceFailure, MemberThatLiesAboutItsPlaceOrSizeIsRefused) {
  struct Case {
    std::function<void(memory::MemberInfo&)> change;
    std::string text;
  };
  const std::vector<Case> cases = {
      {[](memory::MemberInfo& info) { info.rank = 1 << 20; }, "got rank 1048576 at position 1"},
      {[](memory::MemberInfo& info) { info.rank = -1; }, "got rank -1 at position 1"},
      {[](memory::MemberInfo& info) { info.rank = 0; }, "got rank 0 at position 1"},
      {[](memory::MemberInfo& info) { info.segment.bytes = 4096; }, "got 4096 announced"},
      {[](memory::MemberInfo& info) { info.segment.bytes <<= 20; }, "announced at position 1"}};
  for (const Case& test : cases) {
    EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 2, [&](int, const auto& comm) {
      HookedBackend hooked(comm, {}, [&](int call, auto& result) {
        if (call != 2) return;  // the one with the segments
        memory::MemberInfo info;
        char* const at = result[1].data() + result[1].size() - sizeof info;
        std::memcpy(&info, at, sizeof info);
        test.change(info);
        std::memcpy(at, &info, sizeof info);
      });
      EXPECT_THAT(failure_of([&] { SymmetricWorkspace::create_host(hooked, kBytes); }),
                  HasSubstr(test.text));
    })));
  }
}

INSTANTIATE_TEST_SUITE_P(All, WorkspaceFailure, Values(RankKind::kThreads, RankKind::kProcesses),
                         ::testing::PrintToStringParamName());

// Failures that a whole process suffers.
class WorkspaceProcessFailure : public WorkspaceFailure {};

TEST_P(WorkspaceProcessFailure, LackOfMemoryOnOneRankIsEveryRanksFailure) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 3, [&](int rank, const auto& comm) {
    const Resources before = Resources::now();
    for (int round = 0; round < 20; ++round) {
      const testing::ScopedFileSizeLimit limit(rank == 1 ? 4096 : 1 << 30);
      EXPECT_THAT(failure_of([&] { SymmetricWorkspace::create_host(*comm, kBytes); }),
                  AllOf(HasSubstr("got a failure on rank 1: shared memory: a slice must fit "
                                  "RLIMIT_FSIZE (4096 bytes), got 102400")));
      EXPECT_EQ(Resources::now(), before);
    }
    SymmetricWorkspace::create_host(*comm, kBytes);  // the 21st attempt
    comm->barrier();
  })));
}

TEST_P(WorkspaceProcessFailure, LackOfDescriptorsFailsAlikeAndLeaksNothing) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 3, [&](int rank, const auto& comm) {
    // Once without the limit: what a sanitizer looks up at the first call costs it descriptors.
    SymmetricWorkspace::create_host(*comm, kBytes);
    comm->barrier();
    const Resources before = Resources::now();
    int num_failures = 0;
    for (int spare = 0; spare < 12; ++spare) {
      std::string text;
      {
        std::unique_ptr<testing::ScopedFdLimit> limit;
        if (rank == 1) limit = std::make_unique<testing::ScopedFdLimit>(spare);
        text = failure_of([&] { SymmetricWorkspace::create_host(*comm, kBytes); });
      }
      for (const std::string& other : comm->allgather(text))
        EXPECT_EQ(other, text);
      num_failures += text == "no failure" ? 0 : 1;
      EXPECT_EQ(Resources::now(), before) << spare << ": " << text;
    }
    EXPECT_GT(num_failures, 3);
    EXPECT_LT(num_failures, 12);
  })));
}

TEST_P(WorkspaceProcessFailure, KilledRankIsNoticedAtOnceAndLeavesThePeersClean) {
  for (int victim_call = 1; victim_call <= 6; ++victim_call) {
    const auto start = std::chrono::steady_clock::now();
    const auto reports = spawn_ranks(GetParam(), 3, [&](int rank, const auto& comm) {
      HookedBackend hooked(comm, [&](int call) {
        if (rank == 1 && call == victim_call) ::raise(SIGKILL);
      });
      const Resources before = Resources::now();
      EXPECT_THAT(failure_of([&] { SymmetricWorkspace::create_host(hooked, kBytes); }),
                  HasSubstr("rank 1"));
      // Fewer where the backend has closed its connections, because its group has ended.
      EXPECT_LE(Resources::now().num_fds, before.num_fds);
      EXPECT_EQ(Resources::now().num_shared_mappings, before.num_shared_mappings);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
    for (const auto& report : reports)
      EXPECT_EQ(report.ok(), report.rank != 1) << report.failure;
  }
}

TEST_P(WorkspaceProcessFailure, PeersMemorySurvivesAKilledOwner) {
  const auto reports = spawn_ranks(GetParam(), 2, [&](int rank, const auto& comm) {
    const auto workspace = SymmetricWorkspace::create_host(*comm, kBytes);
    workspace->slice(rank)[99] = std::byte{42};
    comm->barrier();
    if (rank == 1) ::raise(SIGKILL);
    EXPECT_THAT(failure_of([&] { comm->barrier(); }), HasSubstr("rank 1"));  // it is gone
    EXPECT_EQ(workspace->slice(1)[99], std::byte{42});
  });
  EXPECT_TRUE(reports[0].ok()) << reports[0].failure;
}

TEST_P(WorkspaceProcessFailure, NeedsNoPtraceRights) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 2, [&](int, const auto& comm) {
    ASSERT_TRUE(testing::deny_system_calls({SYS_pidfd_open, SYS_pidfd_getfd, SYS_ptrace,
                                            SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp},
                                           EPERM));
    SymmetricWorkspace::create_host(*comm, kBytes);
    comm->barrier();
  })));
}

TEST_P(WorkspaceProcessFailure, WorksWhereOneRankHasNoMemfd) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 2, [&](int rank, const auto& comm) {
    ASSERT_TRUE(rank == 0 || testing::deny_system_calls({SYS_memfd_create}, ENOSYS));
    const auto workspace = SymmetricWorkspace::create_host(*comm, kBytes);
    workspace->slice(rank)[0] = std::byte{7};
    comm->barrier();
    EXPECT_EQ(workspace->slice(1 - rank)[0], std::byte{7});
    comm->barrier();
  })));
}

INSTANTIATE_TEST_SUITE_P(All, WorkspaceProcessFailure, Values(RankKind::kProcesses),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace moe_ep
