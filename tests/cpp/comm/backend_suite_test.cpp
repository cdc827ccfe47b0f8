// What every CommBackend must do, over LocalGroup and over UnixSocketBackend.
#include <sys/mman.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/comm_backend.hpp>

#include "support/spawn_ranks.hpp"

namespace moe_ep {
namespace {

using testing::all_ok;
using ::testing::Combine;
using ::testing::ElementsAre;
using testing::RankKind;
using testing::spawn_ranks;
using ::testing::Values;

// A counter that forked ranks share.
class SharedCounter {
 public:
  SharedCounter() {
    memory_ = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    value_ = new (memory_) std::atomic<int>(0);
  }
  ~SharedCounter() { ::munmap(memory_, sizeof(std::atomic<int>)); }
  std::atomic<int>& operator*() { return *value_; }

 private:
  void* memory_;
  std::atomic<int>* value_;
};

class BackendSuite : public ::testing::TestWithParam<std::tuple<RankKind, int>> {
 protected:
  RankKind kind() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  ::testing::AssertionResult run(const testing::RankBody& body) const {
    return all_ok(spawn_ranks(kind(), size(), body));
  }
};

TEST_P(BackendSuite, KnowsRankAndSize) {
  EXPECT_TRUE(run([&](int rank, const auto& comm) {
    EXPECT_EQ(comm->get_rank(), rank);
    EXPECT_EQ(comm->get_size(), size());
  }));
}

TEST_P(BackendSuite, AllgatherReturnsMessagesOfAnyLengthInRankOrder) {
  const auto message_of = [](int rank, std::size_t bytes) {
    std::string message(bytes, static_cast<char>('a' + rank));
    if (bytes > 1) message[bytes / 2] = '\0';
    return message;
  };
  EXPECT_TRUE(run([&](int rank, const auto& comm) {
    for (const std::size_t bytes : {0, 1, 17, 65536, 400'000}) {
      const auto length = [&](int src) { return bytes == 0 ? 0 : bytes + 3 * std::size_t(src); };
      const auto all = comm->allgather(message_of(rank, length(rank)));
      ASSERT_EQ(all.size(), std::size_t(size()));
      for (int src = 0; src < size(); ++src) {
        EXPECT_TRUE(all[std::size_t(src)] == message_of(src, length(src))) << bytes << " " << src;
      }
    }
  }));
}

TEST_P(BackendSuite, AllgatherMixesEmptyAndLargeMessages) {
  EXPECT_TRUE(run([&](int rank, const auto& comm) {
    const std::size_t own = rank == 0 ? 2'000'000 : 0;
    const auto all = comm->allgather(std::string(own, 'x'));
    for (int src = 0; src < size(); ++src) {
      EXPECT_EQ(all[std::size_t(src)].size(), src == 0 ? 2'000'000U : 0U);
    }
  }));
}

TEST_P(BackendSuite, BcastReturnsTheRootsMessageWhateverOthersPass) {
  EXPECT_TRUE(run([&](int rank, const auto& comm) {
    for (int root = 0; root < size(); ++root) {
      const std::string mine = "from " + std::to_string(rank);
      EXPECT_EQ(comm->bcast(mine, root), "from " + std::to_string(root));
    }
    EXPECT_THROW(comm->bcast("x", -1), std::invalid_argument);
    EXPECT_THROW(comm->bcast("x", size()), std::invalid_argument);
  }));
}

TEST_P(BackendSuite, BarrierWaitsForEveryRank) {
  SharedCounter entered;
  EXPECT_TRUE(run([&](int rank, const auto& comm) {
    for (int round = 1; round <= 50; ++round) {
      if (round % size() == rank) std::this_thread::yield();
      ++*entered;
      comm->barrier();
      EXPECT_EQ(*entered, round * size());
      comm->barrier();
    }
  }));
}

TEST_P(BackendSuite, SplitGroupsByColorAndOrdersByKeyThenRank) {
  EXPECT_TRUE(run([&](int rank, const auto& comm) {
    const auto reversed = comm->split(rank % 2, -rank);
    const int group_size = (size() + (rank % 2 == 0 ? 1 : 0)) / 2;
    EXPECT_EQ(reversed->get_size(), group_size);
    EXPECT_EQ(reversed->get_rank(), group_size - 1 - rank / 2);
    const auto all = reversed->allgather(std::to_string(rank));
    for (int i = 0; i < group_size; ++i) {
      EXPECT_EQ(all[std::size_t(group_size - 1 - i)], std::to_string(2 * i + rank % 2));
    }
    const auto same_key = comm->split(7, 7);
    EXPECT_EQ(same_key->get_rank(), rank);
    EXPECT_EQ(same_key->get_size(), size());
    const auto alone = comm->split(-rank, 0);
    EXPECT_EQ(alone->get_size(), 1);
    EXPECT_THAT(alone->allgather("me"), ElementsAre("me"));
  }));
}

TEST_P(BackendSuite, SubGroupsWorkIndependentlyAndOutliveTheirParent) {
  EXPECT_TRUE(run([&](int rank, const std::shared_ptr<CommBackend>& comm) {
    std::shared_ptr<CommBackend> parent = comm->split(0, rank);
    std::shared_ptr<CommBackend> half = parent->split(rank < size() / 2 ? 0 : 1, rank);
    const int rounds = rank < size() / 2 ? 3 : 40;  // out of step with the other half
    for (int round = 0; round < rounds; ++round)
      half->barrier();
    parent.reset();
    EXPECT_EQ(half->bcast("hello", 0), "hello");
  }));
}

TEST_P(BackendSuite, ManyRoundsStayInStep) {
  EXPECT_TRUE(run([&](int rank, const auto& comm) {
    for (int round = 0; round < 300; ++round) {
      const auto all = comm->allgather(std::to_string(round) + ":" + std::to_string(rank));
      for (int src = 0; src < size(); ++src) {
        ASSERT_EQ(all[std::size_t(src)], std::to_string(round) + ":" + std::to_string(src));
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(All, BackendSuite,
                         Combine(Values(RankKind::kThreads, RankKind::kProcesses),
                                 Values(1, 2, 3, 5, 8)),
                         [](const auto& test) {
                           return ::testing::PrintToString(std::get<0>(test.param)) +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace moe_ep
