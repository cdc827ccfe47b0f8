// Ranks of one process on the GPUs at hand, driven by one thread: a slice, a stream and a failure
// record each. What tests and the benchmark launch kernels on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <moe_ep/workspace.hpp>

#include "cuda/check.hpp"
#include "cuda/kernels/launch.hpp"
#include "protocol/step.hpp"

namespace moe_ep::testing {

int num_gpus();

// Device memory with an owner.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(int device, std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  void upload(const void* from, std::size_t bytes) const;
  std::vector<std::byte> download() const;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  int device_ = 0;
};

struct RigRank {
  int device = 0;
  cudaStream_t stream = nullptr;
  cuda::FailureRecord* record = nullptr;  // mapped host memory
  RankMask* mask = nullptr;               // device memory
  std::shared_ptr<SymmetricWorkspace> memory;
  protocol::Workspace workspace;
  cuda::LaunchOptions options;
};

class Rig {
 public:
  // @param devices one a rank; the same number several times puts ranks on one GPU
  Rig(const std::vector<int>& devices, const protocol::WorkspaceLayout& layout);
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  RigRank& operator[](int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  // Makes the rank's device current.
  RigRank& use(int rank);
  void synchronize();
  // Arms every slice after step `epoch`, clears records.
  void reset(protocol::Epoch epoch = 0);
  // What the rank's record holds, or an ok status.
  protocol::StepStatus status(int rank) const;

 private:
  std::vector<RigRank> ranks_;
  DeviceBuffer block_;  // all slices, where all ranks are on one GPU
};

// Throws unless every rank's last steps went well.
void expect_all_ok(Rig& rig);

}  // namespace moe_ep::testing
