// Runs a function once for every rank of a group, as threads or as processes, within a deadline.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <moe_ep/comm_backend.hpp>

namespace moe_ep::testing {

enum class RankKind { kThreads, kProcesses };

std::ostream& operator<<(std::ostream& out, RankKind kind);

struct SpawnOptions {
  // Then processes are killed and reported. A thread cannot be killed: the test program aborts
  // after it has printed who is late.
  std::chrono::milliseconds deadline{60'000};
  // Of the group's CommBackend; well below the deadline, so that a hang has a text.
  std::chrono::milliseconds comm_timeout{20'000};
};

// How a rank ended.
struct RankReport {
  int rank = 0;
  std::string failure;  // what it threw, or how it died; empty when it returned
  int signal = 0;       // that ended the process; 0 otherwise

  bool ok() const { return failure.empty(); }
};

using RankBody = std::function<void(int rank, const std::shared_ptr<CommBackend>& comm)>;

// Runs `body(rank, comm)` for every rank in [0, size) and waits for all of them.
//
// kThreads: members of one LocalGroup. kProcesses: forked children joined by UnixSocketBackend;
// call it while this process has one thread. A failed EXPECT or ASSERT in a child fails its rank.
std::vector<RankReport> spawn_ranks(RankKind kind, int size, const RankBody& body,
                                    const SpawnOptions& options = {});

// For EXPECT_TRUE(all_ok(spawn_ranks(...))).
::testing::AssertionResult all_ok(const std::vector<RankReport>& reports);

}  // namespace moe_ep::testing
