// Forks the ranks' processes, speaks with them and knows how they ended.
#pragma once

#include <sys/types.h>

#include <array>
#include <string>

#include "chaos/chaos_step.hpp"
#include "chaos/control.hpp"
#include "support/host_suite_backend.hpp"

namespace moe_ep::testing::chaos {

// What must never happen; the text says on which rank.
[[noreturn]] void fail(int rank, const std::string& what);

class Supervisor {
 public:
  explicit Supervisor(const HostSuiteBackend& backend) : backend_(backend) {}
  ~Supervisor();  // kills who is left
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Forks the rank's process. This process must have one thread.
  void start(int rank);
  void say(int rank, const Command& command);
  // The rank's next reply; a rank that is silent for long fails the run.
  Reply hear(int rank);
  // What the process held when it started.
  const Reply& baseline(int rank) const { return child(rank).baseline; }

  void signal(int rank, int number) const;
  // Wait for the process to be stopped or to end; the status is waitpid()'s.
  int await_stop(int rank);
  int await_end(int rank);

 private:
  struct Child {
    pid_t pid = -1;
    int control = -1;
    Reply baseline = {};
  };
  Child& child(int rank) { return children_[static_cast<std::size_t>(rank)]; }
  const Child& child(int rank) const { return children_[static_cast<std::size_t>(rank)]; }
  [[noreturn]] void run_child(int rank, int control);

  const HostSuiteBackend& backend_;
  std::array<Child, kNumRanks> children_;
};

}  // namespace moe_ep::testing::chaos
