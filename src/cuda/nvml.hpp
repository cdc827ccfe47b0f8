// What NVML knows about this machine's GPUs, read without CUDA: no context comes into being, and
// nothing links NVML.
//
// NVML numbers all GPUs of the machine, CUDA those that CUDA_VISIBLE_DEVICES leaves, in its order.
// A GPU is therefore named by its UUID here, never by a number.
#pragma once

#include <string>
#include <vector>

namespace moe_ep::cuda {

enum class LinkState { kActive, kInactive, kAbsent };  // kAbsent: a slot without a link

struct GpuFacts {
  std::string uuid;  // "GPU-..."
  int compute_major = 0;
  int compute_minor = 0;
  std::vector<LinkState> links;
};

struct PlatformFacts {
  std::string unavailable;      // why nothing else is known; empty if it is
  int cuda_driver_version = 0;  // 13000: CUDA 13.0
  std::vector<GpuFacts> gpus;
};

PlatformFacts read_platform();

// One sentence why kernels cannot run on such a machine; empty if they can.
// @param required_version the driver's CUDA version at least
std::string explain(const PlatformFacts& facts, int required_version);

// What NVML says about two GPUs of this machine.
enum class GpuLink { kNvlink, kNone, kUnknown };
GpuLink link_between(const std::string& uuid, const std::string& peer_uuid);

}  // namespace moe_ep::cuda
