#include "chaos/supervisor.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "chaos/rank_process.hpp"
#include "support/resources.hpp"

namespace moe_ep::testing::chaos {
namespace {

constexpr std::chrono::seconds kPatience{30};

int wait_status(pid_t pid, int options) {
  int status = 0;
  while (::waitpid(pid, &status, options) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  return status;
}

}  // namespace

void fail(int rank, const std::string& what) {
  throw std::runtime_error("rank " + std::to_string(rank) + ": " + what);
}

Supervisor::~Supervisor() {
  for (int rank = 0; rank < kNumRanks; ++rank) {
    if (child(rank).pid < 0) continue;
    ::kill(child(rank).pid, SIGKILL);
    await_end(rank);
  }
}

void Supervisor::start(int rank) {
  const Control control = make_control();
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) {
    ::close(control.supervisor);
    run_child(rank, control.rank);
  }
  ::close(control.rank);
  child(rank) = {.pid = pid, .control = control.supervisor};
  child(rank).baseline = hear(rank);
}

void Supervisor::run_child(int rank, int control) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Otherwise a peer's pair would not end with the supervisor's side of it.
  for (const Child& other : children_) {
    if (other.control >= 0) ::close(other.control);
  }
  int status = 0;
  try {
    Reply baseline;
    const Resources resources = Resources::now();
    baseline.num_fds = resources.num_fds;
    baseline.num_mappings = resources.num_shared_mappings;
    send(control, baseline);
    serve_rank(rank, control, backend_);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    status = 1;
  }
  std::fflush(nullptr);
  ::_exit(status);
}

void Supervisor::say(int rank, const Command& command) {
  if (!send(child(rank).control, command)) fail(rank, "is gone before a command");
}

Reply Supervisor::hear(int rank) {
  const auto reply = receive<Reply>(child(rank).control, kPatience);
  if (!reply) fail(rank, "must reply, got its end or silence");
  return *reply;
}

void Supervisor::signal(int rank, int number) const {
  if (child(rank).pid > 0) ::kill(child(rank).pid, number);  // never -1, which is everybody
}

// SIGKILL bounds both waits: the deadline is that of the whole test.
int Supervisor::await_stop(int rank) {
  return wait_status(child(rank).pid, WUNTRACED);
}

int Supervisor::await_end(int rank) {
  const int status = wait_status(child(rank).pid, 0);
  ::close(child(rank).control);
  child(rank) = {};
  return status;
}

}  // namespace moe_ep::testing::chaos
