// What becomes of a joined UnixSocketBackend group when a rank dies, stalls or misbehaves.
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/comm_backend.hpp>
#include <moe_ep/error.hpp>

#include "comm/unix_star.hpp"
#include "support/resources.hpp"
#include "support/spawn_ranks.hpp"

namespace moe_ep {
namespace {

using namespace std::chrono_literals;
using detail::Deadline;
using detail::FrameType;
using testing::all_ok;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RankKind;
using testing::spawn_ranks;

// Ranks as threads over real sockets; rank `odd_one` gets the bare connection instead.
class UnixSocketFailureTest : public ::testing::Test {
 protected:
  using Body = std::function<void(UnixSocketBackend&)>;

  void run(int size, std::chrono::milliseconds timeout, const Body& body, int odd_one = -1,
           const std::function<void(detail::Peer)>& odd_body = {}) {
    const testing::Resources before = testing::Resources::now();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        if (rank == odd_one) {
          odd_body(detail::member_join(path_, rank, size, 20s));
          return;
        }
        UnixSocketBackend comm(path_, rank, size, timeout);
        body(comm);
      });
    }
    for (std::thread& thread : threads)
      thread.join();
    EXPECT_EQ(testing::Resources::now(), before);
  }

  template <class Call>
  static std::string failure(Call&& call) {
    try {
      call();
    } catch (const MoEEpError& error) {
      return error.what();
    }
    return "no failure";
  }

  testing::TempDir directory_;
  const std::string path_ = directory_.path() + "/group";
};

TEST(UnixSocketKillTest, KilledRankIsNamedOnEveryRankAndLaterCallsFailAtOnce) {
  for (const int victim : {0, 1, 3}) {
    const auto reports = spawn_ranks(RankKind::kProcesses, 4, [&](int rank, const auto& comm) {
      comm->barrier();
      if (rank == victim) ::raise(SIGKILL);
      for (int call = 0; call < 2; ++call) {
        try {
          comm->allgather(std::string(100'000, 'x'));
          ADD_FAILURE() << "rank " << rank << " went on";
        } catch (const MoEEpTimeoutError& error) {
          ADD_FAILURE() << "must be noticed at once: " << error.what();
        } catch (const MoEEpError& error) {
          EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(victim)));
        }
      }
    });
    for (const auto& report : reports) {
      EXPECT_EQ(report.signal, report.rank == victim ? SIGKILL : 0) << report.failure;
      EXPECT_TRUE(report.ok() || report.rank == victim) << report.failure;
    }
  }
}

TEST_F(UnixSocketFailureTest, MissingRankIsNamedOnEveryRank) {
  std::atomic<int> done{0};
  run(3, 200ms, [&](UnixSocketBackend& comm) {
    if (comm.get_rank() == 2) {
      while (done < 2)
        std::this_thread::yield();
      EXPECT_THROW(comm.barrier(), MoEEpTimeoutError);  // it comes too late
      return;
    }
    for (int call = 0; call < 2; ++call) {
      try {
        comm.barrier();
        ADD_FAILURE() << "went on";
      } catch (const MoEEpTimeoutError& error) {
        EXPECT_THAT(error.ranks(), ElementsAre(2)) << error.what();
        EXPECT_EQ(error.phase(), Phase::kSetup);
      }
    }
    ++done;
  });
}

TEST_F(UnixSocketFailureTest, MissingHubIsNamedAndDoesNotGoOnAlone) {
  for (const std::size_t bytes : {1, 4'000'000}) {  // in the socket as a whole, and not
    std::atomic<int> done{0};
    run(3, 200ms, [&](UnixSocketBackend& comm) {
      if (comm.get_rank() == 0) {
        while (done < 2)
          std::this_thread::yield();
        EXPECT_THAT(failure([&] { comm.allgather("x"); }), HasSubstr("got: it has left"));
        return;
      }
      try {
        comm.allgather(std::string(comm.get_rank() == 1 ? bytes : 1, 'x'));
        ADD_FAILURE() << "went on";
      } catch (const MoEEpTimeoutError& error) {
        EXPECT_THAT(error.ranks(), ElementsAre(0)) << error.what();
      }
      ++done;
    });
  }
}

TEST_F(UnixSocketFailureTest, DifferentCallsFailOnEveryRank) {
  run(3, 20s, [&](UnixSocketBackend& comm) {
    const std::string text =
        failure([&] { comm.get_rank() == 1 ? comm.barrier() : void(comm.bcast("x", 2)); });
    EXPECT_THAT(text, HasSubstr("every rank must call the same operation, got bcast(root 2) on "
                                "rank 0 and barrier on rank 1"));
  });
}

TEST_F(UnixSocketFailureTest, DifferentRootsFailOnEveryRank) {
  run(2, 20s, [&](UnixSocketBackend& comm) {
    EXPECT_THAT(failure([&] { comm.bcast("x", comm.get_rank()); }),
                HasSubstr("got bcast(root 0) on rank 0 and bcast(root 1) on rank 1"));
  });
}

TEST_F(UnixSocketFailureTest, GarbageFromAMemberIsBlamedOnIt) {
  run(
      3, 20s,
      [&](UnixSocketBackend& comm) {
        EXPECT_THAT(failure([&] { comm.barrier(); }),
                    AllOf(HasSubstr("rank 2 must follow the protocol"), HasSubstr("magic number")));
      },
      2,
      [&](detail::Peer hub) {
        const std::string garbage(100, 'z');
        ::send(hub.fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
        detail::Frame frame;
        receive_frame(hub.fd.get(), hub.reader, frame, Deadline(20s));
        EXPECT_EQ(frame.type, FrameType::kFailure);
      });
}

TEST_F(UnixSocketFailureTest, OperationOutOfSequenceIsBlamedOnTheMember) {
  run(
      2, 20s,
      [&](UnixSocketBackend& comm) {
        EXPECT_THAT(failure([&] { comm.barrier(); }), HasSubstr("barrier on rank 1"));
      },
      1,
      [&](detail::Peer hub) {
        send_frame(hub.fd.get(), FrameType::kBarrier, 5, 0, {}, Deadline(1s));
        detail::Frame frame;
        receive_frame(hub.fd.get(), hub.reader, frame, Deadline(20s));
        EXPECT_EQ(frame.type, FrameType::kFailure);
      });
}

TEST_F(UnixSocketFailureTest, StaleGiveUpNoticeIsIgnored) {
  run(
      2, 20s, [&](UnixSocketBackend& comm) { comm.barrier(); }, 1,
      [&](detail::Peer hub) {
        send_frame(hub.fd.get(), FrameType::kGiveUp, 0, 0, {}, Deadline(1s));
        send_frame(hub.fd.get(), FrameType::kBarrier, 1, 0, {}, Deadline(1s));
        detail::Frame frame;
        receive_frame(hub.fd.get(), hub.reader, frame, Deadline(20s));
        EXPECT_EQ(frame.type, FrameType::kResult);
      });
}

TEST_F(UnixSocketFailureTest, MessageOverTheCapIsRefusedAndTheGroupGoesOn) {
  run(2, 20s, [&](UnixSocketBackend& comm) {
    // Nothing is read from the view before its length is refused.
    const std::string_view huge("x", detail::kMaxFrameBytes + 1);
    EXPECT_THAT(failure([&] { comm.allgather(huge); }), HasSubstr("must have at most 1073741824"));
    EXPECT_EQ(comm.allgather("x").size(), 2U);
  });
}

// A hub that answers split() with colors none of which is the asker's leaves it without a group.
TEST_F(UnixSocketFailureTest, SplitChecksWhatTheHubSays) {
  std::thread hub([&] {
    std::vector<detail::Peer> peers = detail::hub_join(path_, 2, 20s);
    const Deadline deadline(20s);
    detail::Frame frame;
    for (std::uint32_t sequence = 1; sequence <= 2; ++sequence) {
      if (detail::receive_frame(peers[1].fd.get(), peers[1].reader, frame, deadline) !=
          detail::IoResult::kDone)
        return;
      const std::string other(8, '\x01');
      detail::send_frame(peers[1].fd.get(), FrameType::kResult, sequence, 0,
                         detail::pack_messages({other, other}), deadline);
    }
  });
  {
    UnixSocketBackend comm(path_, 1, 2, 20s);
    EXPECT_THAT(failure([&] { comm.split(3, 0); }),
                HasSubstr("UnixSocketBackend.split: every rank's color and key must come back"));
  }
  hub.join();
}

TEST_F(UnixSocketFailureTest, SignalsDoNotDisturbOperations) {
  struct sigaction action{};
  struct sigaction old{};
  action.sa_handler = [](int) {};  // without SA_RESTART: system calls end with EINTR
  ::sigaction(SIGALRM, &action, &old);
  const itimerval often{{0, 500}, {0, 500}};
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  run(3, 20s, [&](UnixSocketBackend& comm) {
    const std::string message(300'000, static_cast<char>('a' + comm.get_rank()));
    for (int round = 0; round < 40; ++round)
      EXPECT_EQ(comm.allgather(message).size(), 3U);
  });
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &old, nullptr);
}

}  // namespace
}  // namespace moe_ep
