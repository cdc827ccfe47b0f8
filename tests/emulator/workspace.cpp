// Symmetric memory of ranks on several emulated GPUs: heap memory that all ranks of the process
// see. Virtual memory management is not emulated, nor what a workspace can do after its
// construction.
#include <moe_ep/workspace.hpp>

#include <cuda_runtime_api.h>

#include <cstring>
#include <string_view>

#include <moe_ep/error.hpp>

namespace moe_ep {
namespace {

constexpr std::size_t kPage = 4096;

class EmulatedWorkspace final : public SymmetricWorkspace {
 public:
  EmulatedWorkspace(CommBackend& comm, std::size_t bytes, int device, int num_ranks)
      : owner_(comm.get_rank() == 0) {
    device_ = {Device::kCuda, device};
    rank_ = comm.get_rank();
    num_ranks_ = num_ranks;
    bytes_ = bytes;
    slice_stride_ = (bytes + kPage - 1) / kPage * kPage;
    void* memory = nullptr;
    if (owner_) cudaMalloc(&memory, slice_stride_ * static_cast<std::size_t>(num_ranks));
    char text[sizeof memory];
    std::memcpy(text, &memory, sizeof memory);
    const std::string agreed = comm.bcast(std::string_view(text, sizeof text), 0);
    std::memcpy(&base_, agreed.data(), sizeof base_);
    if (base_ == nullptr) throw MoEEpError("SymmetricWorkspace: no memory");
    if (owner_) std::memset(base_, 0, slice_stride_ * static_cast<std::size_t>(num_ranks));
    comm.barrier();
    mapped_ = true;
  }
  ~EmulatedWorkspace() override {
    if (owner_) cudaFree(base_);
  }
  void checkpoint_prepare(CommBackend&) override { refuse(); }
  void checkpoint_restore(CommBackend&) override { refuse(); }
  void discard() noexcept override {}
  void remap(CommBackend&, const std::vector<int>&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw MoEEpError("not emulated"); }

  bool owner_;
};

}  // namespace

SymmetricWorkspace::~SymmetricWorkspace() = default;

std::shared_ptr<SymmetricWorkspace> SymmetricWorkspace::create_cuda(CommBackend& comm,
                                                                    std::size_t bytes, int device,
                                                                    int num_ranks,
                                                                    const std::vector<int>&, bool) {
  return std::make_shared<EmulatedWorkspace>(comm, bytes, device, num_ranks);
}

}  // namespace moe_ep
