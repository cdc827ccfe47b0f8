// SymmetricWorkspace::create_host: what every rank sees.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/comm_backend.hpp>
#include <moe_ep/workspace.hpp>

#include "memory/slice_map.hpp"
#include "support/resources.hpp"
#include "support/spawn_ranks.hpp"

namespace moe_ep {
namespace {

using namespace std::chrono_literals;
using testing::access_at;
using testing::all_ok;
using ::testing::Combine;
using ::testing::IsEmpty;
using testing::RankKind;
using testing::Resources;
using testing::ScopedEnv;
using ::testing::SizeIs;
using testing::spawn_ranks;
using ::testing::Values;

std::string bytes_of(const SymmetricWorkspace& workspace, int rank) {
  return {reinterpret_cast<const char*>(workspace.slice(rank)), workspace.bytes()};
}

class HostWorkspaceSuite : public ::testing::TestWithParam<std::tuple<RankKind, int>> {
 protected:
  RankKind kind() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  ::testing::AssertionResult run(const testing::RankBody& body) const {
    return all_ok(spawn_ranks(kind(), size(), body));
  }

  testing::TempDir directory_;
  ScopedEnv env_{"MOE_EP_RENDEZVOUS_DIR", directory_.path().c_str()};
};

TEST_P(HostWorkspaceSuite, EverySliceIsSharedByEveryRank) {
  EXPECT_TRUE(run([&](int rank, const auto& comm) {
    for (const std::size_t bytes : {1, 64, 4095, 4096, 4097, 1'000'003}) {
      const auto workspace = SymmetricWorkspace::create_host(*comm, bytes);
      EXPECT_EQ(workspace->rank(), rank);
      EXPECT_EQ(workspace->num_ranks(), size());
      EXPECT_EQ(workspace->bytes(), bytes);
      EXPECT_TRUE(workspace->mapped());
      for (int src = 0; src < size(); ++src) {
        EXPECT_EQ(bytes_of(*workspace, src), std::string(bytes, '\0'));
      }
      comm->barrier();
      std::memset(workspace->slice(rank), 'a' + rank, bytes);  // my own slice
      comm->barrier();
      for (int src = 0; src < size(); ++src) {
        EXPECT_EQ(bytes_of(*workspace, src), std::string(bytes, static_cast<char>('a' + src)));
      }
      comm->barrier();
      const int next = (rank + 1) % size();
      std::memset(workspace->slice(next), 'A' + rank, bytes);  // a peer's
      comm->barrier();
      const int previous = (rank + size() - 1) % size();
      EXPECT_EQ(bytes_of(*workspace, rank), std::string(bytes, static_cast<char>('A' + previous)));
      comm->barrier();
    }
  }));
  EXPECT_THAT(directory_.entries(), IsEmpty());
}

TEST_P(HostWorkspaceSuite, GuardPagesSurroundEverySlice) {
  EXPECT_TRUE(run([&](int, const auto& comm) {
    const std::size_t page = memory::SliceMap::page_bytes();
    const auto workspace = SymmetricWorkspace::create_host(*comm, page + 1);
    EXPECT_EQ(workspace->slice_stride(), 3 * page);
    for (int src = 0; src < size(); ++src) {
      EXPECT_EQ(workspace->slice(src), workspace->base() + std::size_t(src) * 3 * page);
      EXPECT_EQ(access_at(workspace->slice(src) - 1), "---p");
      EXPECT_EQ(access_at(workspace->slice(src) + 2 * page - 1), "rw-s");
      EXPECT_EQ(access_at(workspace->slice(src) + 2 * page), "---p");
    }
    comm->barrier();
  }));
}

TEST_P(HostWorkspaceSuite, IdsAreAgreedAndNeverRepeat) {
  EXPECT_TRUE(run([&](int, const auto& comm) {
    std::set<std::uint64_t> ids;
    for (int round = 0; round < 4; ++round) {
      const auto workspace = SymmetricWorkspace::create_host(*comm, 8);
      ids.insert(workspace->id());
      for (const auto& id : comm->allgather(std::to_string(workspace->id()))) {
        EXPECT_EQ(id, std::to_string(workspace->id()));
      }
    }
    EXPECT_THAT(ids, SizeIs(4));
    EXPECT_FALSE(ids.contains(0));
  }));
}

TEST_P(HostWorkspaceSuite, RingOfFlagsCarriesData) {
  EXPECT_TRUE(run([&](int rank, const auto& comm) {
    const auto workspace = SymmetricWorkspace::create_host(*comm, 256);
    const auto flag = [&](int of) {
      return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(workspace->slice(of)));
    };
    const auto word = [&](int of) {
      return reinterpret_cast<std::uint64_t*>(workspace->slice(of) + 64);
    };
    const int next = (rank + 1) % size();
    for (std::uint32_t round = 1; round <= 100; ++round) {
      *word(next) = 1000 * round + std::uint64_t(rank);
      flag(next).store(round, std::memory_order_release);  // pairs with the load below
      while (flag(rank).load(std::memory_order_acquire) != round)
        std::this_thread::yield();
      EXPECT_EQ(*word(rank), 1000 * round + std::uint64_t((rank + size() - 1) % size()));
      comm->barrier();
    }
  }));
}

TEST_P(HostWorkspaceSuite, MemoryLivesUntilTheLastRankLetsGo) {
  EXPECT_TRUE(run([&](int rank, const auto& comm) {
    auto workspace = SymmetricWorkspace::create_host(*comm, 64);
    std::memset(workspace->slice(rank), 'x', 64);
    comm->barrier();
    if (rank == 0) workspace.reset();  // local: waits for nobody
    comm->barrier();
    EXPECT_TRUE(!workspace || bytes_of(*workspace, 0) == std::string(64, 'x'));
    comm->barrier();
  }));
}

TEST_P(HostWorkspaceSuite, RoundsOfCreationLeaveNothingBehind) {
  const Resources outside = Resources::now();
  EXPECT_TRUE(run([&](int, const auto& comm) {
    Resources before;
    for (int round = 0; round < 50; ++round) {
      comm->barrier();
      if (round == 1) before = Resources::now();
      comm->barrier();
      SymmetricWorkspace::create_host(*comm, 10'000);
    }
    comm->barrier();
    EXPECT_EQ(Resources::now(), before);
  }));
  EXPECT_EQ(Resources::now(), outside);
  EXPECT_THAT(directory_.entries(), IsEmpty());
}

TEST_P(HostWorkspaceSuite, SubGroupSeesItsMembersOnly) {
  if (size() < 3) GTEST_SKIP() << "needs 3 ranks, one of them away, got " << size();
  // Everybody but rank 1 is there.
  EXPECT_TRUE(run([&](int rank, const auto& comm) {
    const auto group = comm->split(rank == 1 ? 1 : 0, rank);
    if (rank == 1) return;
    std::vector<int> members;
    for (int member = 0; member < size(); ++member) {
      if (member != 1) members.push_back(member);
    }
    const auto workspace = SymmetricWorkspace::create_host(*group, 100, size(), members);
    EXPECT_EQ(workspace->rank(), rank);
    EXPECT_EQ(workspace->num_ranks(), size());
    std::memset(workspace->slice(rank), 'a' + rank, 100);
    group->barrier();
    EXPECT_EQ(access_at(workspace->slice(1)), "---p");
    for (const int member : members) {
      EXPECT_EQ(bytes_of(*workspace, member), std::string(100, static_cast<char>('a' + member)));
    }
    group->barrier();
  }));
}

INSTANTIATE_TEST_SUITE_P(All, HostWorkspaceSuite,
                         Combine(Values(RankKind::kThreads, RankKind::kProcesses),
                                 Values(1, 2, 3, 5)),
                         [](const auto& test) {
                           return ::testing::PrintToString(std::get<0>(test.param)) +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST(HostWorkspaceTest, ThreadsShareOneMapping) {
  std::mutex mutex;
  std::set<std::byte*> bases;
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 4, [&](int, const auto& comm) {
    const auto workspace = SymmetricWorkspace::create_host(*comm, 64);
    {
      const std::lock_guard lock(mutex);
      bases.insert(workspace->base());
    }
    EXPECT_EQ(Resources::now().num_shared_mappings, 4);
    comm->barrier();
  })));
  EXPECT_THAT(bases, SizeIs(1));
}

TEST(HostWorkspaceTest, ThreadsOfSeveralProcessesMapEachForItself) {
  const testing::TempDir sockets;
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kProcesses, 2, [&](int process, const auto&) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&, rank = 2 * process + thread] {
        UnixSocketBackend comm(sockets.path() + "/all", rank, 4, 20s);
        const auto workspace = SymmetricWorkspace::create_host(comm, 64);
        std::memset(workspace->slice(rank), 'a' + rank, 64);
        comm.barrier();
        for (int src = 0; src < 4; ++src) {
          EXPECT_EQ(bytes_of(*workspace, src), std::string(64, static_cast<char>('a' + src)));
        }
        comm.barrier();
      });
    }
    for (std::thread& thread : threads)
      thread.join();
  })));
}

TEST(HostWorkspaceTest, WorkspacesOfDifferentGroupsShareNothing) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 4, [&](int rank, const auto& comm) {
    const auto half = comm->split(rank % 2, rank);
    const auto workspace = SymmetricWorkspace::create_host(*half, 64);
    comm->barrier();
    if (half->get_rank() == 0) std::memset(workspace->slice(0), 'a' + rank % 2, 64);
    comm->barrier();
    EXPECT_EQ(bytes_of(*workspace, 0), std::string(64, static_cast<char>('a' + rank % 2)));
  })));
}

}  // namespace
}  // namespace moe_ep
