// Symmetric device memory: mapping, failures, checkpoints, leaks.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <moe_ep/comm_backend.hpp>
#include <moe_ep/error.hpp>
#include <moe_ep/workspace.hpp>

#include "rig.hpp"

namespace moe_ep::testing {
namespace {

constexpr std::size_t kBytes = 3 << 20;

int device_of(int rank) {
  return rank % std::max(1, num_gpus());
}

// Runs `body(rank, comm)` on threads, each with its device current; returns what each threw.
std::vector<std::string> on_threads(int size, const std::function<void(int, CommBackend&)>& body) {
  LocalGroup group(size, std::chrono::seconds(10));
  std::vector<std::string> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        MOE_EP_CUDA_CHECK(cudaSetDevice(device_of(rank)));
        body(rank, *group.backend(rank));
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  return failures;
}

std::vector<int> all_of(int size) {
  std::vector<int> members;
  for (int rank = 0; rank < size; ++rank)
    members.push_back(rank);
  return members;
}

std::shared_ptr<SymmetricWorkspace> make(CommBackend& comm, std::size_t bytes, int device) {
  return SymmetricWorkspace::create_cuda(comm, bytes, device, comm.get_size(),
                                         all_of(comm.get_size()), false);
}

// Every rank writes its mark into every slice and then finds everybody's in its own.
void expect_shared(SymmetricWorkspace& workspace, CommBackend& comm) {
  const int size = workspace.num_ranks();
  for (int peer = 0; peer < size; ++peer) {
    const int mark = 100 * workspace.rank() + peer;
    MOE_EP_CUDA_CHECK(
        cudaMemcpy(workspace.slice(peer) + 4 * workspace.rank(), &mark, 4, cudaMemcpyHostToDevice));
  }
  MOE_EP_CUDA_CHECK(cudaDeviceSynchronize());
  comm.barrier();
  for (int peer = 0; peer < size; ++peer) {
    int got = 0;
    MOE_EP_CUDA_CHECK(
        cudaMemcpy(&got, workspace.slice(workspace.rank()) + 4 * peer, 4, cudaMemcpyDeviceToHost));
    if (got != 100 * peer + workspace.rank()) throw std::runtime_error("a mark is not there");
  }
  comm.barrier();
}

class WorkspaceGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_gpus() < 1) GTEST_SKIP() << "needs a GPU, got none";
  }
};

TEST_F(WorkspaceGpuTest, EverySliceIsMappedOnEveryRankAndZero) {
  const auto failures = on_threads(4, [](int rank, CommBackend& comm) {
    const auto workspace = make(comm, kBytes, device_of(rank));
    if (workspace->slice(1) - workspace->slice(0) !=
        static_cast<std::ptrdiff_t>(workspace->slice_stride())) {
      throw std::runtime_error("slices are not evenly spaced");
    }
    std::vector<unsigned char> bytes(kBytes, 1);
    MOE_EP_CUDA_CHECK(
        cudaMemcpy(bytes.data(), workspace->slice(rank), kBytes, cudaMemcpyDeviceToHost));
    for (const unsigned char byte : bytes) {
      if (byte != 0) throw std::runtime_error("memory is not zero");
    }
    comm.barrier();
    expect_shared(*workspace, comm);
  });
  for (const std::string& failure : failures)
    EXPECT_EQ(failure, "");
}

TEST_F(WorkspaceGpuTest, OneRanksFailureIsEveryRanksError) {
  const auto failures = on_threads(
      3, [](int rank, CommBackend& comm) { make(comm, kBytes, rank == 1 ? 77 : device_of(rank)); });
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find("rank 1"), std::string::npos) << failure;
    EXPECT_EQ(failure, failures[0]);
  }
  const auto sizes = on_threads(2, [](int rank, CommBackend& comm) {
    make(comm, rank == 1 ? 2 * kBytes : kBytes, device_of(rank));
  });
  EXPECT_NE(sizes[0].find("same size"), std::string::npos) << sizes[0];
  const auto too_large = on_threads(
      2, [](int rank, CommBackend& comm) { make(comm, std::size_t{1} << 42, device_of(rank)); });
  EXPECT_NE(too_large[0].find("cuMemCreate"), std::string::npos) << too_large[0];
}

TEST_F(WorkspaceGpuTest, CheckpointsFreeMemoryAndKeepAddresses) {
  const auto failures = on_threads(2, [](int rank, CommBackend& comm) {
    const std::size_t bytes = std::size_t{256} << 20;
    const auto workspace = make(comm, bytes, device_of(rank));
    expect_shared(*workspace, comm);
    std::byte* const base = workspace->base();
    std::size_t before = 0, total = 0, after = 0;
    MOE_EP_CUDA_CHECK(cudaMemGetInfo(&before, &total));
    comm.barrier();
    workspace->checkpoint_prepare(comm);
    workspace->checkpoint_prepare(comm);  // nothing more to do
    MOE_EP_CUDA_CHECK(cudaMemGetInfo(&after, &total));
    if (after < before + bytes) throw std::runtime_error("memory was not given back");
    if (workspace->mapped()) throw std::runtime_error("still mapped");
    comm.barrier();
    workspace->checkpoint_restore(comm);
    if (workspace->base() != base) throw std::runtime_error("the addresses have changed");
    expect_shared(*workspace, comm);
  });
  for (const std::string& failure : failures)
    EXPECT_EQ(failure, "");
}

TEST_F(WorkspaceGpuTest, AReplacedMemberIsMappedAtTheOldAddresses) {
  const auto failures = on_threads(3, [](int rank, CommBackend& comm) {
    auto workspace = make(comm, kBytes, device_of(rank));
    const std::uint64_t old_id = workspace->id();
    comm.barrier();
    if (rank == 2) workspace.reset();
    // First without rank 2, then with a new one.
    const auto survivors = comm.split(rank == 2 ? 1 : 0, rank);
    if (rank != 2) {
      int mark = 7 + rank;
      MOE_EP_CUDA_CHECK(cudaMemcpy(workspace->slice(rank) + 64, &mark, 4, cudaMemcpyHostToDevice));
      workspace->remap(*survivors, {0, 1});
      int kept = 0;
      MOE_EP_CUDA_CHECK(cudaMemcpy(&kept, workspace->slice(rank) + 64, 4, cudaMemcpyDeviceToHost));
      if (kept != mark) throw std::runtime_error("own memory was lost");
    }
    comm.barrier();
    if (rank == 2) {
      workspace = make(comm, kBytes, device_of(rank));
    } else {
      workspace->remap(comm, {0, 1, 2});
    }
    if (workspace->id() == old_id) throw std::runtime_error("the id is the old one");
    expect_shared(*workspace, comm);
  });
  for (const std::string& failure : failures)
    EXPECT_EQ(failure, "");
}

TEST_F(WorkspaceGpuTest, NothingIsLeftAfterManyRounds) {
  const auto round = [](bool fail) {
    on_threads(2, [fail](int rank, CommBackend& comm) {
      const auto workspace = make(comm, kBytes, fail && rank == 1 ? 77 : device_of(rank));
      expect_shared(*workspace, comm);
    });
  };
  const auto free_bytes = [] {
    std::size_t free = 0, total = 0;
    MOE_EP_CUDA_CHECK(cudaSetDevice(0));
    MOE_EP_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return free;
  };
  round(false);
  round(true);
  const std::size_t before = free_bytes();
  for (int index = 0; index < 20; ++index)
    round(index % 2 == 1);
  EXPECT_EQ(free_bytes(), before);
}

}  // namespace
}  // namespace moe_ep::testing
