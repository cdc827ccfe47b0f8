// Workspaces of ranks that are threads, on the double of the driver.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <moe_ep/error.hpp>
#include <moe_ep/workspace.hpp>

#include "driver_double.hpp"
#include "support/resources.hpp"
#include "support/spawn_ranks.hpp"

namespace moe_ep::testing {

inline constexpr int kRanks = 3;
inline constexpr std::size_t kBytes = 100'000;

using Workspace = std::shared_ptr<SymmetricWorkspace>;

inline void PrintTo(Fabric fabric, std::ostream* out) {
  static constexpr const char* kNames[] = {"Works", "NoAttribute", "NotPermitted", "NoExport"};
  *out << kNames[static_cast<int>(fabric)];
}

// "NotPermitted2", of a test's parameters.
inline std::string name_of(const ::testing::TestParamInfo<std::tuple<Fabric, int>>& test) {
  const auto [fabric, rank] = test.param;
  return ::testing::PrintToString(fabric) + std::to_string(rank);
}

inline std::vector<int> ranks_below(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(rank);
  return ranks;
}

// Two of three ranks share a GPU.
inline Workspace make(CommBackend& comm, int rank) {
  return SymmetricWorkspace::create_cuda(comm, kBytes, rank % 2, comm.get_size(),
                                         ranks_below(comm.get_size()), true);
}

// Fresh memory is zero; what every rank writes into every slice, everybody finds in its own.
inline void expect_shared(const SymmetricWorkspace& workspace, CommBackend& comm) {
  const auto own = static_cast<std::size_t>(workspace.rank());
  const auto size = static_cast<std::size_t>(workspace.num_ranks());
  for (std::size_t at = 0; at < workspace.bytes(); ++at) {
    if (workspace.slice(workspace.rank())[at] != std::byte{0}) {
      throw std::runtime_error("memory must be zero, got something at " + std::to_string(at));
    }
  }
  comm.barrier();
  for (int peer = 0; peer < workspace.num_ranks(); ++peer) {
    const std::size_t mark = 100 * own + static_cast<std::size_t>(peer) + 1;
    std::memcpy(workspace.slice(peer) + 8 * own, &mark, sizeof mark);
    std::memcpy(workspace.slice(peer) + workspace.bytes() - 8 * (own + 1), &mark, sizeof mark);
  }
  comm.barrier();
  const std::byte* const slice = workspace.slice(workspace.rank());
  for (std::size_t peer = 0; peer < size; ++peer) {
    std::size_t first = 0, last = 0;
    std::memcpy(&first, slice + 8 * peer, sizeof first);
    std::memcpy(&last, slice + workspace.bytes() - 8 * (peer + 1), sizeof last);
    if (first != 100 * peer + own + 1 || last != first) {
      throw std::runtime_error("rank " + std::to_string(peer) + "'s mark is not there");
    }
  }
  comm.barrier();
}

// The text of the MoEEpError that `work` throws, empty if it returns. Other exceptions go on.
inline std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const MoEEpError& error) {
    EXPECT_STRNE(error.what(), "");
    return error.what();
  }
  return {};
}

// What may not differ before and after.
struct Everything {
  Held held = Held::now();
  int num_fds = Resources::now().num_fds;

  friend bool operator==(const Everything&, const Everything&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Everything& all) {
    return out << all.held << ", " << all.num_fds << " descriptors";
  }
};

class DriverTest : public ::testing::Test {
 protected:
  using Body = std::function<void(int rank, CommBackend& comm)>;

  void SetUp() override { follow({}); }
  void TearDown() override {
    follow({});
    EXPECT_THAT(directory_.entries(), ::testing::IsEmpty());
  }

  static void on_ranks(const Body& body) {
    EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, kRanks, [&](int rank, const auto& comm) {
      play(rank);
      body(rank, *comm);
    })));
  }

  // Every rank has an error, the same one, which names the operation, the rank and the call.
  static void expect_error(const std::vector<std::string>& errors, int rank,
                           const std::string& call) {
    const std::string prefix = "device memory: must succeed on every rank, got a failure on rank " +
                               std::to_string(rank) + ": ";
    for (const std::string& error : errors) {
      EXPECT_EQ(error, errors.front());
      EXPECT_THAT(error, ::testing::StartsWith(prefix));
      EXPECT_THAT(error, ::testing::HasSubstr(call + " "));
      EXPECT_THAT(error, ::testing::HasSubstr("failed with CUDA"));
    }
  }

 private:
  TempDir directory_;
  ScopedEnv env_{"MOE_EP_RENDEZVOUS_DIR", directory_.path().c_str()};
};

}  // namespace moe_ep::testing
