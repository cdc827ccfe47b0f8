#include <cuda_runtime_api.h>

#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "backend/platform.hpp"
#include "cuda/cuda_backend.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/driver.hpp"
#include "cuda/nvml.hpp"

namespace moe_ep {
namespace cuda {
namespace {

using protocol::FailureRecord;

// What the static runtime needs at least: any driver of the toolkit's major version.
constexpr int kRequiredVersion = CUDART_VERSION / 1000 * 1000;

std::string why_not_supported() {
  return cuda::explain(read_platform(), kRequiredVersion);
}

// The device that the calling thread has made current, if it has; asking makes none current.
std::optional<int> current_device() {
  CUcontext context = nullptr;
  int device = 0;
  if (Driver::get().cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) {
    return std::nullopt;
  }
  MOE_EP_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

std::optional<int> device_of_local_rank(int num_devices) {
  const char* text = std::getenv("LOCAL_RANK");
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 0 || value >= num_devices) {
    throw MoEEpError("LOCAL_RANK must number one of the " + std::to_string(num_devices) +
                     " visible GPUs if no device is given, got '" + text + "'");
  }
  return static_cast<int>(value);
}

class CudaPlatform final : public Platform {
 public:
  std::string explain() const override {
    static const std::string reason = why_not_supported();
    return reason;
  }

  // Faster than the fence at every T that was measured (docs/cuda.md): memory alone decides.
  std::int64_t default_lamport_tokens() const override {
    return std::numeric_limits<std::int64_t>::max();
  }
  bool has(Transport transport) const override { return transport != Transport::kCounted; }

  Device choose_device(std::optional<int> wanted, int rank) const override {
    int num_devices = 0;
    MOE_EP_CUDA_CHECK(cudaGetDeviceCount(&num_devices));
    if (num_devices == 0) throw MoEEpError("a visible GPU is needed, got none");
    std::optional<int> index = wanted;
    if (!index) index = current_device();
    if (!index) index = device_of_local_rank(num_devices);
    if (!index) index = rank % num_devices;
    if (*index >= num_devices) {
      throw MoEEpError("device must number one of the " + std::to_string(num_devices) +
                       " visible GPUs, got " + std::to_string(*index));
    }
    int major = 0;
    MOE_EP_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, *index));
    if (major < 9) {
      throw MoEEpError("device " + std::to_string(*index) +
                       " must have compute capability 9.0 or more, got " + std::to_string(major) +
                       ".x");
    }
    return Device{Device::kCuda, *index};
  }

  std::shared_ptr<SymmetricWorkspace> create_memory(
      CommBackend& comm, std::size_t bytes, const PlatformOptions& options, int num_ranks,
      const std::vector<int>& members) const override {
    return SymmetricWorkspace::create_cuda(comm, bytes, options.device.index, num_ranks, members,
                                           options.require_nvlink);
  }

  std::shared_ptr<FailureRecord> create_record(Device device) const override {
    const DeviceGuard guard(device.index);
    void* memory = nullptr;
    MOE_EP_CUDA_CHECK(
        cudaHostAlloc(&memory, sizeof(FailureRecord), cudaHostAllocMapped | cudaHostAllocPortable));
    return {new (memory) FailureRecord{}, [](FailureRecord* record) { cudaFreeHost(record); }};
  }

  std::unique_ptr<Backend> create_backend(const PlatformOptions& options,
                                          std::shared_ptr<FailureRecord> record) const override {
    return make_cuda_backend(options, std::move(record));
  }
};

}  // namespace
}  // namespace cuda

const Platform& cuda_platform() {
  static const cuda::CudaPlatform platform;
  return platform;
}

}  // namespace moe_ep
