// The CUDA platform of a build without kernels: it says why it cannot be used, and callers need no
// #ifdef.

#include <filesystem>

#include <moe_ep/error.hpp>

#include "backend/platform.hpp"

namespace moe_ep {
namespace {

class NoCudaPlatform final : public Platform {
 public:
  std::string explain() const override {
    const bool gpu = std::filesystem::exists("/dev/nvidiactl");
    return gpu ? "this build of moe_ep has no CUDA kernels, though an NVIDIA driver is loaded"
               : "no NVIDIA driver is loaded (there is no /dev/nvidiactl), and this build of "
                 "moe_ep "
                 "has no CUDA kernels";
  }
  bool has(Transport) const override { return false; }
  std::int64_t default_lamport_tokens() const override { return 0; }
  Device choose_device(std::optional<int>, int) const override { refuse(); }
  std::shared_ptr<SymmetricWorkspace> create_memory(CommBackend&, std::size_t,
                                                    const PlatformOptions&, int,
                                                    const std::vector<int>&) const override {
    refuse();
  }
  std::shared_ptr<protocol::FailureRecord> create_record(Device) const override { refuse(); }
  std::unique_ptr<Backend> create_backend(const PlatformOptions&,
                                          std::shared_ptr<protocol::FailureRecord>) const override {
    refuse();
  }

 private:
  [[noreturn]] void refuse() const { throw MoEEpError("CUDA: " + explain()); }
};

}  // namespace

const Platform& cuda_platform() {
  static const NoCudaPlatform platform;
  return platform;
}

std::shared_ptr<SymmetricWorkspace> SymmetricWorkspace::create_cuda(CommBackend&, std::size_t, int,
                                                                    int, const std::vector<int>&,
                                                                    bool) {
  throw MoEEpError("SymmetricWorkspace::create_cuda: " + cuda_platform().explain());
}

}  // namespace moe_ep
