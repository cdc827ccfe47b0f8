// Symmetric memory of ranks on emulated GPUs: the host's, which GPUs see as well. So it is zeroed,
// has guard pages, and is gone once unmapped, which a kernel that still uses it would notice.
#include <moe_ep/workspace.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "comm/agree.hpp"

namespace moe_ep {
namespace {

class EmulatedWorkspace final : public SymmetricWorkspace {
 public:
  EmulatedWorkspace(CommBackend& comm, std::size_t bytes, int device, int num_ranks,
                    const std::vector<int>& members)
      : memory_(SymmetricWorkspace::create_host(comm, bytes, num_ranks, members)) {
    device_ = {Device::kCuda, device};
    rank_ = memory_->rank();
    num_ranks_ = num_ranks;
    bytes_ = bytes;
    slice_stride_ = memory_->slice_stride();
    follow(comm);
  }

  void checkpoint_prepare(CommBackend& comm) override {
    if (!mapped_) return;
    detail::gather_outcomes(comm, "device memory",
                            detail::failure_of([&] { cudaDeviceSynchronize(); }));
    memory_->checkpoint_prepare(comm);
    follow(comm);
  }
  void checkpoint_restore(CommBackend& comm) override {
    if (mapped_) return;
    memory_->checkpoint_restore(comm);
    follow(comm);
  }
  void discard() noexcept override {
    memory_->discard();
    mapped_ = memory_->mapped();
  }
  void remap(CommBackend& comm, const std::vector<int>& members) override {
    memory_->remap(comm, members);
    follow(comm);
  }

 private:
  // What may have changed. Collective.
  void follow(CommBackend& comm) {
    base_ = memory_->base();
    mapped_ = memory_->mapped();
    id_ = memory_->id();
    const auto devices =
        detail::gather_outcomes(comm, "device memory", std::nullopt, std::to_string(device_.index));
    ranks_on_device_ =
        static_cast<int>(std::count(devices.begin(), devices.end(), std::to_string(device_.index)));
  }

  const std::shared_ptr<SymmetricWorkspace> memory_;
};

}  // namespace

std::shared_ptr<SymmetricWorkspace> SymmetricWorkspace::create_cuda(CommBackend& comm,
                                                                    std::size_t bytes, int device,
                                                                    int num_ranks,
                                                                    const std::vector<int>& members,
                                                                    bool) {
  return std::make_shared<EmulatedWorkspace>(comm, bytes, device, num_ranks, members);
}

}  // namespace moe_ep
