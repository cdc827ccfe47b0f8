#include "cuda/nvml.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace moe_ep::cuda {
namespace {

// The part of NVML's interface that is used (NVML API Reference, "Enums" and "Device Queries").
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInvalidArgument = 2;
using Device = void*;
constexpr unsigned kMaxLinkSlots = 64;
constexpr int kP2pNvlink = 2;  // NVML_P2P_CAPS_INDEX_NVLINK
constexpr int kP2pOk = 0;      // NVML_P2P_STATUS_OK

class Nvml {
 public:
  Nvml() {
    library_.reset(::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL));
    if (library_ == nullptr) {
      unavailable_ = "no NVIDIA driver is loaded (libnvidia-ml.so.1 cannot be opened)";
      return;
    }
    if (!(find(init_, "nvmlInit_v2") && find(shutdown_, "nvmlShutdown") &&
          find(driver_version, "nvmlSystemGetCudaDriverVersion") &&
          find(count, "nvmlDeviceGetCount_v2") && find(by_index, "nvmlDeviceGetHandleByIndex_v2") &&
          find(by_uuid, "nvmlDeviceGetHandleByUUID") && find(uuid, "nvmlDeviceGetUUID") &&
          find(compute, "nvmlDeviceGetCudaComputeCapability") &&
          find(link_state, "nvmlDeviceGetNvLinkState") &&
          find(p2p_status, "nvmlDeviceGetP2PStatus"))) {
      return;
    }
    const Result result = init_();
    initialised_ = result == kSuccess;
    if (!initialised_) {
      unavailable_ = "NVML cannot be initialised (nvmlInit_v2 returned " + std::to_string(result) +
                     "): no NVIDIA driver is loaded, or it does not fit the library";
    }
  }
  ~Nvml() {
    if (initialised_) shutdown_();
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const std::string& unavailable() const { return unavailable_; }

  Result (*driver_version)(int*) = nullptr;
  Result (*count)(unsigned*) = nullptr;
  Result (*by_index)(unsigned, Device*) = nullptr;
  Result (*by_uuid)(const char*, Device*) = nullptr;
  Result (*uuid)(Device, char*, unsigned) = nullptr;
  Result (*compute)(Device, int*, int*) = nullptr;
  Result (*link_state)(Device, unsigned, int*) = nullptr;
  Result (*p2p_status)(Device, Device, int, int*) = nullptr;

 private:
  struct Close {
    void operator()(void* library) const { ::dlclose(library); }
  };

  template <class Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_.get(), name));
    if (function == nullptr) unavailable_ = std::string("this driver's NVML has no ") + name;
    return function != nullptr;
  }

  std::unique_ptr<void, Close> library_;
  std::string unavailable_;
  bool initialised_ = false;
  Result (*init_)() = nullptr;
  Result (*shutdown_)() = nullptr;
};

GpuFacts read_gpu(const Nvml& nvml, Device device) {
  GpuFacts gpu;
  char uuid[96] = {};
  if (nvml.uuid(device, uuid, sizeof uuid) == kSuccess) gpu.uuid = uuid;
  nvml.compute(device, &gpu.compute_major, &gpu.compute_minor);
  for (unsigned link = 0; link < kMaxLinkSlots; ++link) {
    int active = 0;
    const Result result = nvml.link_state(device, link, &active);
    if (result == kInvalidArgument) break;  // beyond the last slot
    gpu.links.push_back(result != kSuccess ? LinkState::kAbsent
                        : active != 0      ? LinkState::kActive
                                           : LinkState::kInactive);
  }
  return gpu;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

PlatformFacts read_platform() {
  PlatformFacts facts;
  if (!std::filesystem::exists("/dev/nvidiactl")) {
    facts.unavailable = "no NVIDIA driver is loaded (there is no /dev/nvidiactl)";
    return facts;
  }
  const Nvml nvml;
  facts.unavailable = nvml.unavailable();
  if (!facts.unavailable.empty()) return facts;
  nvml.driver_version(&facts.cuda_driver_version);
  unsigned count = 0;
  nvml.count(&count);
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    if (nvml.by_index(index, &device) == kSuccess) facts.gpus.push_back(read_gpu(nvml, device));
  }
  return facts;
}

std::string explain(const PlatformFacts& facts, int required_version) {
  if (!facts.unavailable.empty()) return facts.unavailable;
  if (facts.cuda_driver_version < required_version) {
    return "the NVIDIA driver must support CUDA " + version_text(required_version) +
           ", got one for CUDA " + version_text(facts.cuda_driver_version);
  }
  std::vector<const GpuFacts*> able;
  for (const GpuFacts& gpu : facts.gpus) {
    if (gpu.compute_major >= 9) able.push_back(&gpu);
  }
  if (able.empty()) {
    return "a GPU of compute capability 9.0 or more is needed, got " +
           (facts.gpus.empty() ? std::string("none")
                               : std::to_string(facts.gpus.front().compute_major) + "." +
                                     std::to_string(facts.gpus.front().compute_minor));
  }
  bool linked = false;
  for (const GpuFacts* gpu : able) {
    const auto active = std::count(gpu->links.begin(), gpu->links.end(), LinkState::kActive);
    const auto inactive = std::find(gpu->links.begin(), gpu->links.end(), LinkState::kInactive);
    linked = linked || active > 0;
    // All links down is a GPU on its own; one of several down is a fault.
    if (active > 0 && inactive != gpu->links.end()) {
      return "every NVLink of a GPU must be active, got link " +
             std::to_string(inactive - gpu->links.begin()) + " of " + gpu->uuid + " inactive";
    }
  }
  if (able.size() > 1 && !linked) return "GPUs must be connected by NVLink, got no active link";
  return "";
}

GpuLink link_between(const std::string& uuid, const std::string& peer_uuid) {
  const Nvml nvml;
  Device device = nullptr;
  Device peer = nullptr;
  int status = 0;
  if (!nvml.unavailable().empty() || nvml.by_uuid(uuid.c_str(), &device) != kSuccess ||
      nvml.by_uuid(peer_uuid.c_str(), &peer) != kSuccess ||
      nvml.p2p_status(device, peer, kP2pNvlink, &status) != kSuccess) {
    return GpuLink::kUnknown;
  }
  return status == kP2pOk ? GpuLink::kNvlink : GpuLink::kNone;
}

}  // namespace moe_ep::cuda
