#include "memory/host_segment.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/error.hpp>

#include "memory/process_identity.hpp"
#include "support/limits.hpp"
#include "support/resources.hpp"

namespace moe_ep::memory {
namespace {

using ::testing::HasSubstr;
using testing::Resources;
using ::testing::ThrowsMessage;

constexpr std::size_t kPage = 4096;

TEST(HostSegmentTest, IsZeroedAndAllThere) {
  for (const SegmentKind kind : {SegmentKind::kMemfd, SegmentKind::kShmOpen}) {
    const HostSegment segment = HostSegment::create(16 * kPage, kind);
    struct stat status{};
    ASSERT_EQ(::fstat(segment.id().fd, &status), 0);
    EXPECT_EQ(status.st_size, off_t(16 * kPage));
    EXPECT_GE(status.st_blocks * 512, blkcnt_t(16 * kPage));  // pages, not a promise of pages
    std::string bytes(16 * kPage, 'x');
    ASSERT_EQ(::pread(segment.id().fd, bytes.data(), bytes.size(), 0), ssize_t(bytes.size()));
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == '\0'; }));
    EXPECT_NO_THROW(require_segment(segment.id().fd, segment.id(), "test"));
  }
}

TEST(HostSegmentTest, NobodyCanShrinkIt) {
  const HostSegment segment = HostSegment::create(4 * kPage);
  EXPECT_EQ(segment.id().kind, SegmentKind::kMemfd);
  EXPECT_NE(::ftruncate(segment.id().fd, 0), 0);
  EXPECT_EQ(errno, EPERM);
}

TEST(HostSegmentTest, OtherDescriptorsAreNotTakenForIt) {
  const HostSegment segment = HostSegment::create(4 * kPage);
  const HostSegment other = HostSegment::create(4 * kPage);
  EXPECT_THAT([&] { require_segment(other.id().fd, segment.id(), "op"); },
              ThrowsMessage<MoEEpError>(HasSubstr("the one it announced, got another file")));
  SegmentId larger = segment.id();
  larger.bytes *= 2;
  EXPECT_THAT([&] { require_segment(segment.id().fd, larger, "op"); },
              ThrowsMessage<MoEEpError>(HasSubstr("32768 bytes long, got 16384")));
  EXPECT_THROW(require_segment(-1, segment.id(), "op"), MoEEpError);

  const HostSegment unsealed = HostSegment::create(4 * kPage, SegmentKind::kShmOpen);
  SegmentId boast = unsealed.id();
  boast.kind = SegmentKind::kMemfd;
  EXPECT_THAT([&] { require_segment(unsealed.id().fd, boast, "op"); },
              ThrowsMessage<MoEEpError>(HasSubstr("sealed against shrinking")));
}

TEST(HostSegmentTest, DescriptorStaysOpenWhileAnotherThreadUsesIt) {
  auto segment = HostSegment::create(4 * kPage);
  const SegmentId id = segment.id();
  {
    const auto shared = HostSegment::find(id);
    segment.reset();
    EXPECT_NO_THROW(require_segment(shared->get(), id, "test"));
    EXPECT_THROW(HostSegment::find(id), MoEEpError);  // it is no longer held out
  }
  EXPECT_THROW(require_segment(id.fd, id, "test"), MoEEpError);
}

// The lack of memory itself is tested with made-up numbers (free_memory_test.cpp): a test that
// asked the kernel for too much would take the machine down the day the check is lost.
TEST(HostSegmentTest, MoreThanALimitAllowsIsAnErrorAtOnce) {
  const Resources before = Resources::now();
  const testing::ScopedFileSizeLimit limit(8 * kPage);
  for (const SegmentKind kind : {SegmentKind::kMemfd, SegmentKind::kShmOpen}) {
    EXPECT_THAT(
        [&] { HostSegment::create(16 * kPage, kind); },
        ThrowsMessage<MoEEpError>(HasSubstr("must fit RLIMIT_FSIZE (32768 bytes), got 65536")));
  }
  EXPECT_EQ(Resources::now(), before);
}

TEST(HostSegmentTest, ATimerDoesNotKeepItFromGettingItsPages) {
  struct sigaction action{};
  struct sigaction old{};
  action.sa_handler = [](int) {};
  ::sigaction(SIGALRM, &action, &old);
  const itimerval often{{0, 1000}, {0, 1000}};
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  EXPECT_NO_THROW(HostSegment::create(std::size_t{64} << 20));
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &old, nullptr);
}

TEST(HostSegmentTest, FallsBackToPosixSharedMemoryWhereMemfdIsNotAllowed) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!testing::deny_system_calls({SYS_memfd_create}, EPERM)) ::_exit(77);
    try {
      const HostSegment segment = HostSegment::create(4 * kPage);
      require_segment(segment.id().fd, segment.id(), "test");
      ::_exit(segment.id().kind == SegmentKind::kShmOpen ? 0 : 1);
    } catch (const std::exception&) {
      ::_exit(2);
    }
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp";
  EXPECT_EQ(status, 0);
}

TEST(ProcessIdentityTest, TokenIsStableAndAChildsDiffers) {
  const ProcessToken token = process_token();
  EXPECT_EQ(process_token(), token);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(process_token() == token ? 1 : 0);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(process_token(), token);
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_LE(host_identity().size(), 36U);
}

}  // namespace
}  // namespace moe_ep::memory
