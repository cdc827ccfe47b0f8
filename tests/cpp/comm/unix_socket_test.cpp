// How a UnixSocketBackend group comes together, and who is kept out.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/comm_backend.hpp>
#include <moe_ep/error.hpp>

#include "comm/unix_address.hpp"
#include "comm/unix_star.hpp"
#include "support/resources.hpp"

namespace moe_ep {
namespace {

using namespace std::chrono_literals;
using detail::Deadline;
using detail::FrameType;
using detail::IoResult;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

class UnixSocketTest : public ::testing::Test {
 protected:
  ~UnixSocketTest() override {
    EXPECT_THAT(directory_.entries(), IsEmpty());
    EXPECT_EQ(testing::Resources::now(), resources_);
  }

  // What a rank's constructor and one barrier throw, or "".
  std::string join(int rank, int world_size, std::chrono::milliseconds timeout = 20s) const {
    try {
      UnixSocketBackend comm(path_, rank, world_size, timeout);
      comm.barrier();
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  }
  std::future<std::string> start(int rank, int world_size,
                                 std::chrono::milliseconds timeout = 20s) const {
    return std::async(std::launch::async, [=, this] { return join(rank, world_size, timeout); });
  }
  void await_listener() const {
    const Deadline deadline(10s);
    struct stat status{};
    while (::lstat(path_.c_str(), &status) != 0 && !deadline.expired())
      std::this_thread::yield();
  }
  // A connection to the hub that no backend made.
  detail::Peer stranger() const {
    int error = 0;
    return {detail::try_connect("test", path_, SOCK_STREAM, error), {}};
  }
  static void send_hello(const detail::Peer& peer, const detail::Hello& hello) {
    send_frame(peer.fd.get(), FrameType::kHello, 0, 0,
               {reinterpret_cast<const char*>(&hello), sizeof hello}, Deadline(1s));
  }
  // Text of the refusal that the hub sends.
  static std::string refusal(detail::Peer& peer) {
    detail::Frame frame;
    if (receive_frame(peer.fd.get(), peer.reader, frame, Deadline(10s)) != IoResult::kDone) {
      return "no answer";
    }
    return frame.type == FrameType::kFailure ? detail::GroupFailure::decode(frame.payload).text
                                             : frame_name(frame.type);
  }

  const testing::Resources resources_ = testing::Resources::now();
  testing::TempDir directory_;
  const std::string path_ = directory_.path() + "/group";
};

TEST_F(UnixSocketTest, RefusesImpossibleArguments) {
  EXPECT_THROW(UnixSocketBackend(path_, 0, 0), std::invalid_argument);
  EXPECT_THROW(UnixSocketBackend(path_, 2, 2), std::invalid_argument);
  EXPECT_THROW(UnixSocketBackend(path_, -1, 2), std::invalid_argument);
  EXPECT_THROW(UnixSocketBackend(path_, 0, 2, 0ms), std::invalid_argument);
  EXPECT_THROW(UnixSocketBackend("", 0, 2), std::invalid_argument);
  EXPECT_THROW(UnixSocketBackend(directory_.path() + "/" + std::string(200, 'x'), 0, 2),
               MoEEpError);
  EXPECT_THROW(UnixSocketBackend("/nonexistent/directory/group", 0, 2), MoEEpError);
}

TEST_F(UnixSocketTest, GroupOfOneNeedsNoSocket) {
  UnixSocketBackend comm("/nonexistent/directory/group", 0, 1);
  EXPECT_THAT(comm.allgather("x"), ElementsAre("x"));
}

TEST_F(UnixSocketTest, SocketHasMode0600WhateverTheUmask) {
  for (const mode_t mask : {0, 0777, 0022}) {
    const mode_t old = ::umask(mask);
    auto hub = start(0, 2);
    await_listener();
    struct stat status{};
    EXPECT_EQ(::lstat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600U) << mask;
    EXPECT_EQ(join(1, 2), "");
    EXPECT_EQ(hub.get(), "");
    ::umask(old);
  }
}

TEST_F(UnixSocketTest, NameIsGoneOnceEverybodyHasJoined) {
  auto hub = std::async(std::launch::async,
                        [&] { return std::make_unique<UnixSocketBackend>(path_, 0, 2); });
  const UnixSocketBackend member(path_, 1, 2);
  EXPECT_THAT(directory_.entries(), IsEmpty());
  hub.get();
}

TEST_F(UnixSocketTest, EveryDescriptorIsCloseOnExec) {
  auto hub = std::async(std::launch::async,
                        [&] { return std::make_unique<UnixSocketBackend>(path_, 0, 2); });
  const UnixSocketBackend member(path_, 1, 2);
  const auto kept = hub.get();
  int num_sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    struct stat status{};
    if (::fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode)) continue;
    ++num_sockets;
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_GE(num_sockets, 2);
}

TEST_F(UnixSocketTest, PathCanBeUsedAgainAndAgain) {
  for (int round = 0; round < 30; ++round) {
    auto hub = start(0, 3);
    auto member = start(1, 3);
    EXPECT_EQ(join(2, 3), "");
    EXPECT_EQ(hub.get() + member.get(), "");
  }
}

TEST_F(UnixSocketTest, MembersMayComeBeforeTheHub) {
  auto member = start(1, 2);
  std::this_thread::yield();
  EXPECT_EQ(join(0, 2), "");
  EXPECT_EQ(member.get(), "");
}

TEST_F(UnixSocketTest, SocketOfADeadRunIsReplaced) {
  {
    detail::UnixListener dead("test", path_ + ".other", SOCK_STREAM, 1);
    ASSERT_EQ(::link((path_ + ".other").c_str(), path_.c_str()), 0);
  }
  auto member = start(1, 2);
  EXPECT_EQ(join(0, 2), "");
  EXPECT_EQ(member.get(), "");
}

TEST_F(UnixSocketTest, SocketOfALiveProcessIsRefused) {
  const detail::UnixListener live("test", path_, SOCK_STREAM, 1);
  EXPECT_THAT(join(0, 2), HasSubstr("must be free, got a socket that another process listens to"));
  EXPECT_THAT(directory_.entries(), ElementsAre("group"));
}

TEST_F(UnixSocketTest, OtherFilesAreLeftAlone) {
  std::ofstream(path_) << "precious";
  EXPECT_THAT(join(0, 2), HasSubstr("must be free or a socket, got another kind of file"));
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "precious");
  std::filesystem::remove(path_);
}

TEST_F(UnixSocketTest, PathsLongerThanASocketAddressWork) {
  const std::string deep = directory_.path() + "/" + std::string(120, 'd');
  std::filesystem::create_directory(deep);
  auto hub =
      std::async(std::launch::async, [&] { UnixSocketBackend(deep + "/group", 0, 2).barrier(); });
  UnixSocketBackend member(deep + "/group", 1, 2);
  member.barrier();
  hub.get();
  EXPECT_TRUE(std::filesystem::remove(deep));  // and it is empty
}

TEST_F(UnixSocketTest, MissingRanksAreNamedOnEveryRank) {
  const auto expect_timeout = [&](int rank, std::chrono::milliseconds timeout) {
    try {
      UnixSocketBackend comm(path_, rank, 4, timeout);
      ADD_FAILURE() << "rank " << rank << " joined";
    } catch (const MoEEpTimeoutError& error) {
      EXPECT_THAT(error.ranks(), ElementsAre(1, 3)) << error.what();
      EXPECT_EQ(error.phase(), Phase::kSetup);
      EXPECT_THAT(error.what(), HasSubstr("got nothing from ranks 1 and 3"));
    }
  };
  // Whoever's time is up first: the hub's, then the member's.
  for (const auto& [hub, member] : {std::pair(300ms, 20s), std::pair(20'000ms, 1s)}) {
    std::thread first([&, timeout = hub] { expect_timeout(0, timeout); });
    await_listener();
    expect_timeout(2, member);
    first.join();
  }
}

TEST_F(UnixSocketTest, MemberWithoutHubNamesRankZero) {
  try {
    UnixSocketBackend comm(path_, 1, 2, 100ms);
    ADD_FAILURE() << "joined";
  } catch (const MoEEpTimeoutError& error) {
    EXPECT_THAT(error.ranks(), ElementsAre(0));
    EXPECT_THAT(error.what(), HasSubstr("rank 0 must listen at"));
  }
}

TEST_F(UnixSocketTest, RankThatJoinsTwiceFailsEveryRank) {
  auto hub = start(0, 3);
  auto first = start(1, 3);
  auto second = start(1, 3);
  const auto text = HasSubstr("every rank must join once, got rank 1 twice");
  EXPECT_THAT(hub.get(), text);
  EXPECT_THAT(first.get(), text);
  EXPECT_THAT(second.get(), text);
}

TEST_F(UnixSocketTest, DifferentWorldSizesFailEveryRank) {
  auto hub = start(0, 3);
  auto member = start(1, 3);
  const std::string other = join(2, 4);
  const auto text =
      HasSubstr("world_size must be equal on every rank, got 3 on rank 0 and 4 on rank 2");
  EXPECT_THAT(other, text);
  EXPECT_THAT(hub.get(), text);
  EXPECT_THAT(member.get(), text);
}

TEST_F(UnixSocketTest, HelloOutOfRangeOrOfAnotherVersionFailsTheGroup) {
  const std::vector<std::pair<detail::Hello, std::string>> cases = {
      {{.world_size = 2, .rank = 2}, "a member's rank must be in [1, 2), got 2"},
      {{.world_size = 2, .rank = 0}, "a member's rank must be in [1, 2), got 0"},
      {{.version = 9, .world_size = 2, .rank = 1}, "protocol version 1, got 9 from rank 1"}};
  for (const auto& [hello, text] : cases) {
    auto hub = start(0, 2);
    await_listener();
    detail::Peer peer = stranger();
    send_hello(peer, hello);
    EXPECT_THAT(refusal(peer), HasSubstr(text));
    EXPECT_THAT(hub.get(), HasSubstr(text));
  }
}

TEST_F(UnixSocketTest, StrangersAreTurnedAwayAndTheGroupGoesOn) {
  auto hub = start(0, 2);
  await_listener();
  detail::Peer garbage = stranger();
  const std::string text = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  ASSERT_EQ(::send(garbage.fd.get(), text.data(), text.size(), 0), ssize_t(text.size()));
  EXPECT_THAT(refusal(garbage), HasSubstr("refused"));
  detail::Peer rude = stranger();
  send_frame(rude.fd.get(), FrameType::kBarrier, 1, 0, {}, Deadline(1s));
  EXPECT_THAT(refusal(rude), HasSubstr("must say hello first, got a barrier"));
  stranger();  // comes and goes without a word
  const detail::Peer silent = stranger();
  EXPECT_EQ(join(1, 2), "");
  EXPECT_EQ(hub.get(), "");
}

TEST_F(UnixSocketTest, MemberThatDiesDuringSetUpIsNamed) {
  auto hub = start(0, 3);
  await_listener();
  {
    const detail::Peer peer = stranger();
    send_hello(peer, {.world_size = 3, .rank = 2});
  }
  EXPECT_THAT(hub.get(), HasSubstr("rank 2 left before every rank had joined"));
}

TEST_F(UnixSocketTest, MemberThatTalksBeforeItsWelcomeFailsTheGroup) {
  auto hub = start(0, 3);
  await_listener();
  detail::Peer peer = stranger();
  send_hello(peer, {.world_size = 3, .rank = 2});
  send_frame(peer.fd.get(), FrameType::kBarrier, 1, 0, {}, Deadline(1s));
  const auto text = HasSubstr("rank 2 must wait for its welcome, got a barrier");
  EXPECT_THAT(refusal(peer), text);
  EXPECT_THAT(hub.get(), text);
}

TEST_F(UnixSocketTest, OtherUsersAreTurnedAway) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
  // Forked first: it waits for a byte before it connects.
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char go = 0;
    if (::read(ends[0], &go, 1) != 1 || ::setuid(65534) != 0) ::_exit(9);
    int error = 0;
    detail::Peer peer{detail::try_connect("test", path_, SOCK_STREAM, error), {}};
    ::_exit(peer.fd && refusal(peer).find("must run as user 0, got user 65534") != std::string::npos
                ? 0
                : 1);
  }
  auto hub = start(0, 2, 1s);
  await_listener();
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);  // else the file system keeps the other user out
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_THAT(hub.get(), AllOf(HasSubstr("got nothing from rank 1"),
                               HasSubstr("refused a connection: a peer must run as user 0, got "
                                         "user 65534")));
}

}  // namespace
}  // namespace moe_ep
