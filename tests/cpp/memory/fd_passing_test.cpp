#include "memory/fd_passing.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/error.hpp>

#include "comm/unix_address.hpp"
#include "memory/fd_message.hpp"
#include "memory/rendezvous.hpp"
#include "support/hooked_backend.hpp"
#include "support/limits.hpp"
#include "support/resources.hpp"
#include "support/spawn_ranks.hpp"

namespace moe_ep::memory {
namespace {

using namespace std::chrono_literals;
using detail::UniqueFd;
using testing::all_ok;
using ::testing::AnyOf;
using ::testing::Combine;
using ::testing::HasSubstr;
using testing::HookedBackend;
using ::testing::IsEmpty;
using testing::RankKind;
using testing::Resources;
using testing::ScopedEnv;
using ::testing::SizeIs;
using testing::spawn_ranks;
using testing::TempDir;
using ::testing::Values;

// A descriptor that shows whose it is.
UniqueFd fd_of(int rank) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::pwrite(fd.get(), &rank, sizeof rank, 0), ssize_t(sizeof rank));
  return fd;
}

void expect_descriptors_of_all(const std::vector<UniqueFd>& fds, int size) {
  ASSERT_EQ(fds.size(), std::size_t(size));
  for (int src = 0; src < size; ++src) {
    int owner = -1;
    const int fd = fds[std::size_t(src)].get();
    EXPECT_EQ(::pread(fd, &owner, sizeof owner, 0), ssize_t(sizeof owner));
    EXPECT_EQ(owner, src);
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
}

std::string failure_of_exchange(CommBackend& comm, int fd) {
  try {
    exchange_fds(comm, fd);
  } catch (const MoEEpError& error) {
    return error.what();
  }
  return "no failure";
}

// The rendezvous directory of all ranks is the test's own, and must end up empty.
class FdPassingTest : public ::testing::Test {
 protected:
  TempDir directory_;
  ScopedEnv env_{"MOE_EP_RENDEZVOUS_DIR", directory_.path().c_str()};
};

class FdPassingSuite : public FdPassingTest,
                       public ::testing::WithParamInterface<std::tuple<RankKind, int>> {};

TEST_P(FdPassingSuite, EveryRankGetsEveryDescriptorAndNothingIsLeft) {
  const auto [kind, size] = GetParam();
  const int num_ranks = size;
  EXPECT_TRUE(all_ok(spawn_ranks(kind, size, [&](int rank, const auto& comm) {
    for (int round = 0; round < 3; ++round) {
      const UniqueFd own = fd_of(rank);
      expect_descriptors_of_all(exchange_fds(*comm, own.get()), num_ranks);
      int owner = -1;
      EXPECT_EQ(::pread(own.get(), &owner, sizeof owner, 0), ssize_t(sizeof owner));
    }
  })));
  EXPECT_THAT(directory_.entries(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, FdPassingSuite,
                         Combine(Values(RankKind::kThreads, RankKind::kProcesses),
                                 Values(1, 2, 3, 8)),
                         [](const auto& test) {
                           return ::testing::PrintToString(std::get<0>(test.param)) +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST_F(FdPassingTest, MixesThreadsAndProcesses) {
  const TempDir sockets;
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kProcesses, 2, [&](int process, const auto&) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&, rank = 2 * process + thread] {
        UnixSocketBackend comm(sockets.path() + "/all", rank, 4, 20s);
        const UniqueFd own = fd_of(rank);
        expect_descriptors_of_all(exchange_fds(comm, own.get()), 4);
      });
    }
    for (std::thread& thread : threads)
      thread.join();
  })));
}

TEST_F(FdPassingTest, SocketsHaveMode0600AndNamesThatDiffer) {
  std::vector<std::string> names;
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 2, [&](int rank, const auto& comm) {
    HookedBackend hooked(comm, {}, [&](int call, auto&) {
      if (call != 2 || rank != 0) return;  // all listen
      names = directory_.entries();
      for (const auto& name : names) {
        struct stat status{};
        EXPECT_EQ(::lstat((directory_.path() + "/" + name).c_str(), &status), 0);
        EXPECT_EQ(status.st_mode & 07777, 0600U);
      }
    });
    const UniqueFd own = fd_of(rank);
    exchange_fds(hooked, own.get());
  })));
  ASSERT_THAT(names, SizeIs(2));
  EXPECT_THAT(names[0], ::testing::MatchesRegex("moe_ep-[0-9a-f]{32}"));
  EXPECT_NE(names[0], names[1]);
}

TEST_F(FdPassingTest, FailureOnOneRankIsEveryRanksFailure) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kProcesses, 3, [&](int rank, const auto& comm) {
    const UniqueFd own = fd_of(rank);
    const Resources before = Resources::now();
    {
      const ScopedEnv missing("MOE_EP_RENDEZVOUS_DIR",
                              rank == 1 ? "/nonexistent" : directory_.path().c_str());
      EXPECT_THAT(failure_of_exchange(*comm, own.get()),
                  HasSubstr("must succeed on every rank, got a failure on rank 1: bind"));
    }
    {
      const ScopedEnv bad("MOE_EP_RENDEZVOUS_TIMEOUT_SEC", rank == 2 ? "soon" : "60");
      EXPECT_THAT(failure_of_exchange(*comm, own.get()),
                  HasSubstr("got a failure on rank 2: MOE_EP_RENDEZVOUS_TIMEOUT_SEC: must be a "
                            "number in 1..86400, got 'soon'"));
    }
    EXPECT_THAT(failure_of_exchange(*comm, rank == 0 ? -1 : own.get()), HasSubstr("rank 0"));
    EXPECT_EQ(Resources::now(), before);
    expect_descriptors_of_all(exchange_fds(*comm, own.get()), 3);
  })));
  EXPECT_THAT(directory_.entries(), IsEmpty());
}

TEST_F(FdPassingTest, RunningOutOfDescriptorsFailsAlikeAndLeaksNothing) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kProcesses, 4, [&](int rank, const auto& comm) {
    const UniqueFd own = fd_of(rank);
    // Once without the limit: what a sanitizer looks up at the first call costs it descriptors.
    expect_descriptors_of_all(exchange_fds(*comm, own.get()), 4);
    const Resources before = Resources::now();
    int num_failures = 0;
    for (int spare = 0; spare < 12; ++spare) {
      std::string text;
      {
        std::unique_ptr<testing::ScopedFdLimit> limit;
        if (rank == 1) limit = std::make_unique<testing::ScopedFdLimit>(spare);
        text = failure_of_exchange(*comm, own.get());
      }
      for (const std::string& other : comm->allgather(text))
        EXPECT_EQ(other, text);
      if (text != "no failure") {
        ++num_failures;
        EXPECT_THAT(text, HasSubstr("rank 1: "));
        EXPECT_THAT(text, AnyOf(HasSubstr("errno 24"), HasSubstr("RLIMIT_NOFILE")));
      }
      EXPECT_EQ(Resources::now(), before) << spare;
    }
    EXPECT_GT(num_failures, 3);
    EXPECT_LT(num_failures, 12);
    expect_descriptors_of_all(exchange_fds(*comm, own.get()), 4);
  })));
  EXPECT_THAT(directory_.entries(), IsEmpty());
}

TEST_F(FdPassingTest, KilledPeerIsNoticedAtOnce) {
  for (const bool has_exchanged : {false, true}) {
    const auto start = std::chrono::steady_clock::now();
    const auto reports = spawn_ranks(RankKind::kProcesses, 4, [&](int rank, const auto& comm) {
      HookedBackend hooked(
          comm,
          [&](int call) {
            if (rank == 2 && has_exchanged && call == 3) ::raise(SIGKILL);
          },
          [&](int, auto&) {
            if (rank == 2 && !has_exchanged) ::raise(SIGKILL);
          });
      const UniqueFd own = fd_of(rank);
      const Resources before = Resources::now();
      EXPECT_THAT(failure_of_exchange(hooked, own.get()), HasSubstr("rank 2"));
      // Fewer where the backend has closed its connections, because its group has ended.
      EXPECT_LE(Resources::now().num_fds, before.num_fds);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
    for (const auto& report : reports)
      EXPECT_EQ(report.ok(), report.rank != 2) << report.failure;
  }
  EXPECT_THAT(directory_.entries(), IsEmpty());
}

TEST_F(FdPassingTest, BackendThatThrowsLeavesNothingBehind) {
  for (const int call : {1, 2, 3}) {
    const Resources before = Resources::now();
    const auto reports = spawn_ranks(
        RankKind::kThreads, 3,
        [&](int rank, const auto& comm) {
          HookedBackend hooked(comm, rank == 1 ? testing::throw_at(call) : HookedBackend::Before());
          const UniqueFd own = fd_of(rank);
          exchange_fds(hooked, own.get());
        },
        {.comm_timeout = 300ms});
    for (const auto& report : reports)
      EXPECT_FALSE(report.ok());
    EXPECT_EQ(reports[1].failure, "injected failure");
    EXPECT_EQ(Resources::now(), before);
  }
  EXPECT_THAT(directory_.entries(), IsEmpty());
}

TEST_F(FdPassingTest, PeerThatNeverAnswersEndsInATimeout) {
  const ScopedEnv timeout("MOE_EP_RENDEZVOUS_TIMEOUT_SEC", "1");
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 3, [&](int rank, const auto& comm) {
    HookedBackend hooked(comm, {}, [&](int call, auto&) {
      if (rank == 2 && call == 2) std::this_thread::sleep_for(1500ms);  // the stall is the test
    });
    const UniqueFd own = fd_of(rank);
    EXPECT_THAT(failure_of_exchange(hooked, own.get()),
                HasSubstr("ranks 0 and 1: every rank must exchange descriptors within 1000 ms, got "
                          "nothing from rank 2"));
  })));
  EXPECT_THAT(directory_.entries(), IsEmpty());
}

TEST_F(FdPassingTest, StrangersGetNothingAndDisturbNobody) {
  const Resources before = Resources::now();
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 2, [&](int rank, const auto& comm) {
    std::vector<UniqueFd> strangers;
    HookedBackend hooked(comm, {}, [&](int call, auto&) {
      if (call != 2 || rank != 0) return;  // all listen
      for (const std::string& name : directory_.entries()) {
        const std::string path = directory_.path() + "/" + name;
        for (int kind = 0; kind < 4; ++kind) {
          int error = 0;
          strangers.push_back(detail::try_connect("test", path, SOCK_SEQPACKET, error));
          if (!strangers.back()) continue;  // the other rank may have finished with its name
          const int socket = strangers.back().get();
          if (kind == 1) ::send(socket, "hello", 5, MSG_NOSIGNAL);
          if (kind == 2) send_proof(socket, {.rank = 0, .token = {1, 2}}, STDIN_FILENO);
          if (kind == 3) strangers.back().reset();
        }
      }
    });
    const UniqueFd own = fd_of(rank);
    expect_descriptors_of_all(exchange_fds(hooked, own.get()), 2);
    for (const UniqueFd& stranger : strangers) {
      EXPECT_TRUE(!stranger || receive_proof(stranger.get()).fds.empty());
    }
  })));
  EXPECT_EQ(Resources::now(), before);
}

TEST_F(FdPassingTest, WrongTicketsAreRefused) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, 2, [&](int rank, const auto& comm) {
    HookedBackend hooked(comm, {}, [&](int call, auto& messages) {
      if (call == 1 && rank == 0) messages[1].resize(messages[1].size() - 40);
    });
    const UniqueFd own = fd_of(rank);
    EXPECT_THAT(failure_of_exchange(hooked, own.get()), HasSubstr("rank 0: "));
  })));
}

TEST(FdMessageTest, TooManyDescriptorsOnTheirWayMeansTryAgain) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become a user without that privilege";
  // The limit counts a user's descriptors in sockets; root has none.
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(65534) != 0) ::_exit(9);
    const testing::ScopedFdLimit limit(6);
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) ::_exit(8);
    int num_sent = 0;
    while (num_sent < 1000 && send_proof(ends[0], {}, ends[0]))
      ++num_sent;
    if (num_sent == 0 || num_sent == 1000) ::_exit(7);
    if (receive_proof(ends[1]).fds.size() != 1) ::_exit(6);
    ::_exit(send_proof(ends[0], {}, ends[0]) ? 0 : 5);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(RendezvousTest, DirectoryComesFromTheEnvironment) {
  const TempDir directory;
  {
    const ScopedEnv chosen("MOE_EP_RENDEZVOUS_DIR", "relative");
    EXPECT_THAT(rendezvous_directory(), ::testing::MatchesRegex("/.*/relative"));
  }
  const ScopedEnv unset("MOE_EP_RENDEZVOUS_DIR", nullptr);
  {
    const ScopedEnv runtime("XDG_RUNTIME_DIR", directory.path().c_str());
    EXPECT_EQ(rendezvous_directory(), directory.path());
  }
  for (const char* unusable : {"/nonexistent", "relative", ""}) {
    const ScopedEnv runtime("XDG_RUNTIME_DIR", unusable);
    EXPECT_EQ(rendezvous_directory(), "/tmp");
  }
}

TEST(RendezvousTest, TimeoutComesFromTheEnvironment) {
  EXPECT_EQ(rendezvous_timeout(), 60s);
  {
    const ScopedEnv chosen("MOE_EP_RENDEZVOUS_TIMEOUT_SEC", "5");
    EXPECT_EQ(rendezvous_timeout(), 5s);
  }
  for (const char* bad : {"0", "-1", "5s", "86401", "99999999999999999999"}) {
    const ScopedEnv chosen("MOE_EP_RENDEZVOUS_TIMEOUT_SEC", bad);
    EXPECT_THROW(rendezvous_timeout(), MoEEpError) << bad;
  }
}

}  // namespace
}  // namespace moe_ep::memory
