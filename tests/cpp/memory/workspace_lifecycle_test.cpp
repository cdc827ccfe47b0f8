// SymmetricWorkspace after its construction: checkpoints and members that come back.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/comm_backend.hpp>
#include <moe_ep/error.hpp>
#include <moe_ep/workspace.hpp>

#include "support/hooked_backend.hpp"
#include "support/limits.hpp"
#include "support/resources.hpp"
#include "support/spawn_ranks.hpp"

namespace moe_ep {
namespace {

using namespace std::chrono_literals;
using testing::access_at;
using testing::all_ok;
using ::testing::HasSubstr;
using testing::HookedBackend;
using testing::RankKind;
using testing::Resources;
using testing::spawn_ranks;
using ::testing::Values;

std::string bytes_of(const SymmetricWorkspace& workspace, int rank) {
  return {reinterpret_cast<const char*>(workspace.slice(rank)), workspace.bytes()};
}

template <class Call>
std::string failure_of(Call&& call) {
  try {
    call();
  } catch (const MoEEpError& error) {
    return error.what();
  }
  return "no failure";
}

class WorkspaceLifecycle : public ::testing::TestWithParam<RankKind> {};

TEST_P(WorkspaceLifecycle, CheckpointFreesTheMemoryAndKeepsTheAddresses) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 3, [&](int rank, const auto& comm) {
    const Resources before = Resources::now();
    comm->barrier();
    const auto workspace = SymmetricWorkspace::create_host(*comm, 5000);
    std::byte* const base = workspace->base();
    const auto id = workspace->id();
    for (int round = 0; round < 3; ++round) {
      std::memset(workspace->slice(rank), 'x', 5000);
      workspace->checkpoint_prepare(*comm);
      EXPECT_FALSE(workspace->mapped());
      EXPECT_EQ(Resources::now(), before);  // neither descriptors nor mappings
      for (int src = 0; src < 3; ++src)
        EXPECT_EQ(access_at(workspace->slice(src)), "---p");
      comm->barrier();
      workspace->checkpoint_prepare(*comm);  // nothing to do
      workspace->checkpoint_restore(*comm);
      EXPECT_TRUE(workspace->mapped());
      EXPECT_EQ(workspace->base(), base);
      EXPECT_EQ(workspace->id(), id);
      for (int src = 0; src < 3; ++src) {
        EXPECT_EQ(bytes_of(*workspace, src), std::string(5000, '\0'));
      }
      workspace->checkpoint_restore(*comm);  // nothing to do
      comm->barrier();
      std::memset(workspace->slice(rank), 'a' + rank, 5000);
      comm->barrier();
      for (int src = 0; src < 3; ++src) {
        EXPECT_EQ(bytes_of(*workspace, src), std::string(5000, static_cast<char>('a' + src)));
      }
      comm->barrier();
    }
  })));
}

TEST_P(WorkspaceLifecycle, RestoreWorksOverANewGroup) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 2, [&](int rank, const auto& comm) {
    const auto first = comm->split(0, rank);
    const auto workspace = SymmetricWorkspace::create_host(*first, 64);
    workspace->checkpoint_prepare(*first);
    const auto second = comm->split(0, rank);
    workspace->checkpoint_restore(*second);
    EXPECT_EQ(bytes_of(*workspace, 1 - rank), std::string(64, '\0'));
    comm->barrier();
  })));
}

TEST_P(WorkspaceLifecycle, NobodyReturnsFromPrepareBeforeAllHaveLetGo) {
  void* const memory = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const released = new (memory) std::atomic<int>(0);
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 3, [&](int rank, const auto& comm) {
    const auto workspace = SymmetricWorkspace::create_host(*comm, 64);
    HookedBackend hooked(comm, [&](int call) {
      if (rank != 0 || call != 2) return;  // the closing collective, after the memory is gone
      std::this_thread::sleep_for(100ms);  // gives a wrong implementation time to return elsewhere
      *released = 1;
    });
    workspace->checkpoint_prepare(hooked);
    EXPECT_EQ(hooked.num_calls(), 2);
    EXPECT_EQ(*released, 1);
  })));
  ::munmap(memory, sizeof(std::atomic<int>));
}

TEST_P(WorkspaceLifecycle, WrongGroupsAreRefusedByEveryRankAndNothingChanges) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 3, [&](int rank, const auto& comm) {
    const auto workspace = SymmetricWorkspace::create_host(*comm, 64);
    const auto reversed = comm->split(0, -rank);
    const auto pair = comm->split(rank < 2 ? 0 : 1, rank);
    EXPECT_THAT(failure_of([&] { workspace->checkpoint_prepare(*reversed); }),
                HasSubstr("comm's rank 0 must be rank 0 of the workspace, got rank 2"));
    EXPECT_THAT(failure_of([&] { workspace->checkpoint_prepare(*pair); }),
                HasSubstr("comm must span the 3 members, got a group of "));
    EXPECT_TRUE(workspace->mapped());
    workspace->checkpoint_prepare(*comm);
    EXPECT_THAT(failure_of([&] { workspace->checkpoint_restore(*reversed); }),
                HasSubstr("checkpoint_restore: must succeed on every rank"));
    EXPECT_THAT(failure_of([&] { workspace->remap(*comm, {0, 1, 2}); }),
                HasSubstr("the workspace must be mapped"));
    EXPECT_FALSE(workspace->mapped());
    workspace->checkpoint_restore(*comm);
    EXPECT_EQ(bytes_of(*workspace, 0), std::string(64, '\0'));
    comm->barrier();
  })));
}

TEST_P(WorkspaceLifecycle, DestructionWhileUnmappedLeavesNothing) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 2, [&](int, const auto& comm) {
    const Resources before = Resources::now();
    comm->barrier();
    auto workspace = SymmetricWorkspace::create_host(*comm, 64);
    const std::byte* const base = workspace->base();
    workspace->checkpoint_prepare(*comm);
    comm->barrier();
    workspace.reset();
    comm->barrier();
    EXPECT_EQ(access_at(base), "");
    EXPECT_EQ(Resources::now(), before);
    comm->barrier();
  })));
}

TEST_P(WorkspaceLifecycle, RemapOfAllMembersKeepsContentsAndChangesTheId) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 3, [&](int rank, const auto& comm) {
    const auto workspace = SymmetricWorkspace::create_host(*comm, 64);
    const auto old_id = workspace->id();
    std::memset(workspace->slice(rank), 'a' + rank, 64);
    workspace->remap(*comm, {0, 1, 2});
    EXPECT_NE(workspace->id(), old_id);
    for (const auto& id : comm->allgather(std::to_string(workspace->id()))) {
      EXPECT_EQ(id, std::to_string(workspace->id()));
    }
    for (int src = 0; src < 3; ++src) {
      EXPECT_EQ(bytes_of(*workspace, src), std::string(64, static_cast<char>('a' + src)));
    }
    comm->barrier();
  })));
}

TEST_P(WorkspaceLifecycle, RemapRefusesMembersThatDoNotFit) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 2, [&](int rank, const auto& comm) {
    const auto workspace = SymmetricWorkspace::create_host(*comm, 64);
    for (const std::vector<int>& members :
         {std::vector<int>{1, 0}, {0, 0}, {0}, {0, 2}, {-1, 0}, {}, {0, 1, 1}}) {
      EXPECT_THAT(failure_of([&] { workspace->remap(*comm, members); }),
                  HasSubstr("SymmetricWorkspace.remap: must succeed on every rank"));
    }
    workspace->remap(*comm, {0, 1});
    EXPECT_EQ(bytes_of(*workspace, 1 - rank), std::string(64, '\0'));
    comm->barrier();
  })));
}

// Ranks 0, 1 and 2 make a workspace; rank 2 goes; the survivors go on alone; the fourth task comes
// as the new rank 2.
TEST_P(WorkspaceLifecycle, MemberThatComesBackGetsTheOldAddressesOfItsPeers) {
  EXPECT_TRUE(all_ok(spawn_ranks(GetParam(), 4, [&](int task, const auto& comm) {
    const bool survivor = task < 2;
    const auto old_group = comm->split(task < 3 ? 0 : 1, task);
    const auto survivors = comm->split(survivor ? 0 : 1, task);
    const auto new_group = comm->split(task == 2 ? 1 : 0, task);
    std::shared_ptr<SymmetricWorkspace> workspace;
    std::byte* base = nullptr;
    if (task < 3) {
      workspace = SymmetricWorkspace::create_host(*old_group, 64);
      base = workspace->base();
      std::memset(workspace->slice(task), 'a' + task, 64);
      old_group->barrier();
      if (task == 2) workspace.reset();
    }
    comm->barrier();
    if (survivor) {
      workspace->remap(*survivors, {0, 1});
      EXPECT_EQ(access_at(workspace->slice(2)), "---p");
      EXPECT_EQ(bytes_of(*workspace, 1 - task), std::string(64, '\0'));
    }
    if (task == 3) {
      const auto solo = LocalGroup(1).backend(0);
      workspace = SymmetricWorkspace::create_host(*solo, 64, 3, {2});
      EXPECT_EQ(access_at(workspace->slice(0)), "---p");
      base = workspace->base();
    }
    if (task != 2) {
      workspace->remap(*new_group, {0, 1, 2});
      EXPECT_EQ(workspace->base(), base);
      std::memset(workspace->slice(workspace->rank()), task == 3 ? 'z' : 'a' + task, 64);
      new_group->barrier();
      for (const auto& id : new_group->allgather(std::to_string(workspace->id()))) {
        EXPECT_EQ(id, std::to_string(workspace->id()));
      }
      const std::string expected = "abz";
      for (int src = 0; src < 3; ++src) {
        EXPECT_EQ(bytes_of(*workspace, src), std::string(64, expected[std::size_t(src)]));
      }
      new_group->barrier();
      // And a checkpoint cycle of the mended group.
      workspace->checkpoint_prepare(*new_group);
      EXPECT_EQ(access_at(workspace->slice(0)), "---p");
      workspace->checkpoint_restore(*new_group);
      EXPECT_EQ(workspace->base(), base);
      std::memset(workspace->slice(workspace->rank()), '0' + workspace->rank(), 64);
      new_group->barrier();
      for (int src = 0; src < 3; ++src) {
        EXPECT_EQ(bytes_of(*workspace, src), std::string(64, static_cast<char>('0' + src)));
      }
      new_group->barrier();
    }
    workspace.reset();
    comm->barrier();
    EXPECT_EQ(Resources::now().num_shared_mappings, 0);
  })));
}

TEST(WorkspaceRemapTest, ThreadThatWasDroppedKeepsItsMemoryWhileItsInstanceLives) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 3, [&](int rank, const auto& comm) {
    auto workspace = SymmetricWorkspace::create_host(*comm, 64);
    const auto rest = comm->split(rank == 2 ? 1 : 0, rank);
    if (rank < 2) workspace->remap(*rest, {0, 1});
    comm->barrier();
    EXPECT_EQ(bytes_of(*workspace, 2), std::string(64, '\0'));  // rank 2 may still be in a step
    comm->barrier();
    if (rank == 2) workspace.reset();
    comm->barrier();
    if (rank < 2) {
      workspace->remap(*rest, {0, 1});
      EXPECT_EQ(access_at(workspace->slice(2)), "---p");
    }
    comm->barrier();
  })));
}

// A process that was stopped and goes on later still has its mappings.
TEST(WorkspaceRemapTest, RankThatWasLeftOutCannotWriteIntoItsFormerPeers) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kProcesses, 3, [&](int rank, const auto& comm) {
    const auto workspace = SymmetricWorkspace::create_host(*comm, 64);
    const auto rest = comm->split(rank == 2 ? 1 : 0, rank);
    const Resources before = Resources::now();
    std::byte* const own = workspace->slice(rank);
    comm->barrier();
    if (rank != 2) {
      workspace->remap(*rest, {0, 1});
      std::memset(workspace->slice(rank), 'x', 64);
    }
    comm->barrier();
    if (rank == 2) std::memset(workspace->slice(0), 'z', 64);
    comm->barrier();
    if (rank != 2) {
      EXPECT_EQ(bytes_of(*workspace, 0), std::string(64, 'x'));
      EXPECT_EQ(workspace->slice(rank), own);
    }
    comm->barrier();
    // Nor can it later, when another process has its place; here it comes back itself.
    workspace->remap(*comm, {0, 1, 2});
    EXPECT_EQ(Resources::now(), before);
    std::memset(workspace->slice(rank), 'a' + rank, 64);
    comm->barrier();
    for (int src = 0; src < 3; ++src)
      EXPECT_EQ(bytes_of(*workspace, src), std::string(64, static_cast<char>('a' + src)));
    comm->barrier();
  })));
}

TEST(WorkspaceRestoreTest, FailedRestoreCanBeTriedAgain) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kProcesses, 3, [&](int rank, const auto& comm) {
    const Resources before = Resources::now();
    const auto workspace = SymmetricWorkspace::create_host(*comm, 100'000);
    workspace->checkpoint_prepare(*comm);
    {
      const testing::ScopedFileSizeLimit limit(rank == 1 ? 4096 : 1 << 30);
      EXPECT_THAT(failure_of([&] { workspace->checkpoint_restore(*comm); }),
                  HasSubstr("got a failure on rank 1: shared memory: a slice must fit"));
    }
    EXPECT_FALSE(workspace->mapped());
    EXPECT_EQ(Resources::now(), before);
    workspace->checkpoint_restore(*comm);
    EXPECT_EQ(bytes_of(*workspace, 1), std::string(100'000, '\0'));
    comm->barrier();
  })));
}

INSTANTIATE_TEST_SUITE_P(All, WorkspaceLifecycle, Values(RankKind::kThreads, RankKind::kProcesses),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace moe_ep
