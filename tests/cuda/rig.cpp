#include "rig.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <moe_ep/comm_backend.hpp>

#include "cuda/kernels/combine.hpp"
#include "cuda/kernels/dispatch.hpp"
#include "cuda/kernels/maintenance.hpp"

namespace moe_ep::testing {

int num_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

DeviceBuffer::DeviceBuffer(int device, std::size_t bytes) : bytes_(bytes), device_(device) {
  MOE_EP_CUDA_CHECK(cudaSetDevice(device));
  MOE_EP_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<std::size_t>(bytes, 1)));
}
DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  cudaSetDevice(device_);
  cudaFree(data_);
}
DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), device_(other.device_) {}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}
void DeviceBuffer::upload(const void* from, std::size_t bytes) const {
  MOE_EP_CUDA_CHECK(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice));
}
std::vector<std::byte> DeviceBuffer::download() const {
  std::vector<std::byte> bytes(bytes_);
  MOE_EP_CUDA_CHECK(cudaMemcpy(bytes.data(), data_, bytes_, cudaMemcpyDeviceToHost));
  return bytes;
}

Rig::Rig(const std::vector<int>& devices, const protocol::WorkspaceLayout& layout)
    : ranks_(devices.size()) {
  const int num_ranks = size();
  const bool one_gpu =
      std::all_of(devices.begin(), devices.end(), [&](int d) { return d == devices.front(); });
  if (one_gpu) {
    const auto stride = static_cast<std::size_t>(protocol::align_up(layout.slice_bytes));
    block_ = DeviceBuffer(devices.front(), stride * devices.size());
    MOE_EP_CUDA_CHECK(cudaMemset(block_.data(), 0x7f, block_.size()));  // not zero: reset must do
    for (RigRank& rank : ranks_) {
      rank.workspace.base = block_.data();
      rank.workspace.slice_stride = static_cast<std::int64_t>(stride);
    }
  } else {
    LocalGroup group(num_ranks);
    std::vector<int> members;
    for (int rank = 0; rank < num_ranks; ++rank)
      members.push_back(rank);
    std::vector<std::thread> threads;
    std::vector<std::string> failures(devices.size());
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto at = static_cast<std::size_t>(rank);
        try {
          ranks_[at].memory = SymmetricWorkspace::create_cuda(
              *group.backend(rank), static_cast<std::size_t>(layout.slice_bytes), devices[at],
              num_ranks, members, false);
        } catch (const std::exception& error) {
          failures[at] = error.what();
        }
      });
    }
    for (std::thread& thread : threads)
      thread.join();
    for (const std::string& failure : failures) {
      if (!failure.empty()) throw std::runtime_error(failure);
    }
    for (RigRank& rank : ranks_) {
      rank.workspace.base = rank.memory->base();
      rank.workspace.slice_stride = static_cast<std::int64_t>(rank.memory->slice_stride());
    }
  }
  for (int index = 0; index < num_ranks; ++index) {
    RigRank& rank = ranks_[static_cast<std::size_t>(index)];
    rank.device = devices[static_cast<std::size_t>(index)];
    rank.workspace.layout = layout;
    rank.workspace.rank = index;
    use(index);
    MOE_EP_CUDA_CHECK(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    MOE_EP_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&rank.record),
                                    sizeof(cuda::FailureRecord), cudaHostAllocMapped));
    MOE_EP_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&rank.mask), sizeof(RankMask)));
    MOE_EP_CUDA_CHECK(cuda::preload_dispatch());
    MOE_EP_CUDA_CHECK(cuda::preload_combine());
    MOE_EP_CUDA_CHECK(cuda::preload_maintenance());
    MOE_EP_CUDA_CHECK(
        cudaDeviceGetAttribute(&rank.options.num_sms, cudaDevAttrMultiProcessorCount, rank.device));
    rank.options.record = rank.record;
    rank.options.ranks_on_device =
        static_cast<int>(std::count(devices.begin(), devices.end(), rank.device));
  }
  reset();
}

Rig::~Rig() {
  for (int index = 0; index < size(); ++index) {
    RigRank& rank = ranks_[static_cast<std::size_t>(index)];
    cudaSetDevice(rank.device);
    cudaStreamSynchronize(rank.stream);
    cudaStreamDestroy(rank.stream);
    cudaFreeHost(rank.record);
    cudaFree(rank.mask);
  }
}

RigRank& Rig::use(int rank) {
  RigRank& used = ranks_[static_cast<std::size_t>(rank)];
  MOE_EP_CUDA_CHECK(cudaSetDevice(used.device));
  return used;
}

void Rig::synchronize() {
  for (int rank = 0; rank < size(); ++rank) {
    MOE_EP_CUDA_CHECK(cudaStreamSynchronize(use(rank).stream));
  }
}

void Rig::reset(protocol::Epoch epoch) {
  synchronize();
  for (int index = 0; index < size(); ++index) {
    RigRank& rank = use(index);
    *rank.record = cuda::FailureRecord{};
    MOE_EP_CUDA_CHECK(cuda::launch_reset(rank.workspace, epoch, rank.stream));
  }
  synchronize();
}

protocol::StepStatus Rig::status(int rank) const {
  const cuda::FailureRecord& record = *ranks_[static_cast<std::size_t>(rank)].record;
  return record.state == cuda::FailureRecord::kRecorded ? record.status : protocol::StepStatus{};
}

void expect_all_ok(Rig& rig) {
  for (int rank = 0; rank < rig.size(); ++rank) {
    const protocol::StepStatus status = rig.status(rank);
    if (status.ok()) continue;
    throw std::runtime_error("rank " + std::to_string(rank) + ": result " +
                             std::to_string(static_cast<unsigned>(status.result)) + " phase " +
                             phase_name(status.phase) + " step " + std::to_string(status.epoch) +
                             " missing " + std::to_string(status.missing.words[0]) + " peer " +
                             std::to_string(status.peer) + " field " +
                             std::to_string(status.field) + " want " + std::to_string(status.want) +
                             " got " + std::to_string(status.got));
  }
}

}  // namespace moe_ep::testing
