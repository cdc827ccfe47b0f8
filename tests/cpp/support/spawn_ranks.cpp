#include "support/spawn_ranks.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>

#include "support/resources.hpp"

namespace moe_ep::testing {
namespace {

using Clock = std::chrono::steady_clock;

// What `run` threw, or empty.
std::string failure_text(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return *error.what() ? error.what() : "an exception without text";
  } catch (...) {
    return "an exception that is no std::exception";
  }
  return {};
}

std::string late_text(const SpawnOptions& options) {
  return "still running after " + std::to_string(options.deadline.count()) + " ms";
}

// Failures recorded so far in the running test; 0 outside one.
int num_assertion_failures() {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  return test == nullptr ? 0 : test->result()->total_part_count();
}

std::vector<RankReport> spawn_threads(int size, const RankBody& body, const SpawnOptions& options) {
  LocalGroup group(size, options.comm_timeout);
  std::vector<RankReport> reports(static_cast<std::size_t>(size));
  std::vector<bool> ended(reports.size());
  std::mutex mutex;
  std::condition_variable changed;
  int num_ended = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const std::string failure = failure_text([&] { body(rank, group.backend(rank)); });
      const std::lock_guard lock(mutex);
      reports[static_cast<std::size_t>(rank)] = {.rank = rank, .failure = failure};
      ended[static_cast<std::size_t>(rank)] = true;
      ++num_ended;
      changed.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    if (!changed.wait_until(lock, Clock::now() + options.deadline,
                            [&] { return num_ended == size; })) {
      for (std::size_t rank = 0; rank < reports.size(); ++rank) {
        const std::string& failure = ended[rank] ? reports[rank].failure : late_text(options);
        std::fprintf(stderr, "rank %zu: %s\n", rank, failure.empty() ? "ok" : failure.c_str());
      }
      std::abort();
    }
  }
  for (std::thread& thread : threads)
    thread.join();
  return reports;
}

struct Child {
  pid_t pid = -1;
  int report_fd = -1;
  std::string report = {};
  bool late = false;
};

[[noreturn]] void run_child(int rank, int size, const std::string& path, const RankBody& body,
                            const SpawnOptions& options, int report_fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int failures_before = num_assertion_failures();
  std::string failure = failure_text([&] {
    body(rank, std::make_shared<UnixSocketBackend>(path, rank, size, options.comm_timeout));
  });
  if (failure.empty() && num_assertion_failures() != failures_before) {
    failure = "an assertion failed, see above";
  }
  std::fflush(nullptr);
  const auto written = ::write(report_fd, failure.data(), failure.size());
  ::_exit(written < 0 || !failure.empty() ? 1 : 0);
}

Child start_child(int rank, int size, const std::string& path, const RankBody& body,
                  const SpawnOptions& options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "pipe");
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) {
    ::close(ends[0]);
    run_child(rank, size, path, body, options, ends[1]);
  }
  ::close(ends[1]);
  return {.pid = pid, .report_fd = ends[0]};
}

// Reads a child's report until it closes the pipe, that is, until it ends.
void await_child(Child& child, Clock::time_point deadline) {
  char chunk[4096];
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{.fd = child.report_fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<long long>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      child.late = true;
      ::kill(child.pid, SIGKILL);
      return;
    }
    const auto count = ::read(child.report_fd, chunk, sizeof chunk);
    if (count <= 0) return;
    child.report.append(chunk, static_cast<std::size_t>(count));
  }
}

RankReport reap(int rank, const Child& child, const SpawnOptions& options) {
  ::close(child.report_fd);
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  RankReport report{.rank = rank, .failure = child.report};
  if (WIFSIGNALED(status)) report.signal = WTERMSIG(status);
  if (child.late) {
    report.failure = late_text(options) + ", killed";
  } else if (report.signal != 0) {
    report.failure = "ended by signal " + std::to_string(report.signal);
  } else if (report.failure.empty() && status != 0) {
    report.failure = "ended with status " + std::to_string(WEXITSTATUS(status));
  }
  return report;
}

std::vector<RankReport> spawn_processes(int size, const RankBody& body,
                                        const SpawnOptions& options) {
  const TempDir directory;
  const std::string path = directory.path() + "/group";
  const auto deadline = Clock::now() + options.deadline;
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(start_child(rank, size, path, body, options));
  }
  for (Child& child : children)
    await_child(child, deadline);
  std::vector<RankReport> reports;
  for (int rank = 0; rank < size; ++rank) {
    reports.push_back(reap(rank, children[static_cast<std::size_t>(rank)], options));
  }
  return reports;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, RankKind kind) {
  return out << (kind == RankKind::kThreads ? "threads" : "processes");
}

std::vector<RankReport> spawn_ranks(RankKind kind, int size, const RankBody& body,
                                    const SpawnOptions& options) {
  return kind == RankKind::kThreads ? spawn_threads(size, body, options)
                                    : spawn_processes(size, body, options);
}

::testing::AssertionResult all_ok(const std::vector<RankReport>& reports) {
  auto result = ::testing::AssertionSuccess();
  for (const RankReport& report : reports) {
    if (report.ok()) continue;
    if (result) result = ::testing::AssertionFailure();
    result << "\nrank " << report.rank << ": " << report.failure;
  }
  return result;
}

}  // namespace moe_ep::testing
