#include "cuda/group_devices.hpp"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "comm/random.hpp"
#include "cuda/check.hpp"
#include "cuda/nvml.hpp"
#include "memory/process_identity.hpp"

namespace moe_ep::cuda {
namespace {

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (std::size_t at = 0; at < sizeof uuid.bytes; ++at) {
    char digits[3] = {};
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[at]));
    text += digits;
    if (at == 3 || at == 5 || at == 7 || at == 9) text += '-';
  }
  return text;
}

// Memory that is there decides: to ask the driver again takes some, and there may be none left.
std::string why_no_fabric(const DeviceFacts& facts) {
  if (facts.fixed_kind < 0) return facts.why_no_fabric;
  const bool has_them = static_cast<HandleKind>(facts.fixed_kind) == HandleKind::kFabric;
  return has_them ? "" : "its memory was made without them";
}

}  // namespace

std::string DeviceFacts::encode() const {
  std::ostringstream text;
  text << host << '\n'
       << uuid << '\n'
       << why_no_fabric << '\n'
       << bytes << ' ' << granularity << ' ' << fixed_kind << ' ' << id;
  return text.str();
}

DeviceFacts DeviceFacts::decode(const std::string& text) {
  std::istringstream in(text);
  DeviceFacts facts;
  std::getline(in, facts.host);
  std::getline(in, facts.uuid);
  std::getline(in, facts.why_no_fabric);
  in >> facts.bytes >> facts.granularity >> facts.fixed_kind >> facts.id;
  if (!in) throw MoEEpError("a rank must describe its GPU, got other bytes");
  return facts;
}

DeviceFacts read_device(int device, std::size_t bytes) {
  cudaDeviceProp properties{};
  MOE_EP_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  int vmm = 0;
  MOE_EP_DRIVER_CHECK(Driver::get(), cuDeviceGetAttribute, &vmm,
                      CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
  if (vmm == 0) {
    throw MoEEpError("the GPU must support virtual memory management, got " +
                     std::string(properties.name) + " without it");
  }
  DeviceFacts facts;
  facts.host = memory::host_identity();
  facts.uuid = uuid_text(properties.uuid);
  facts.why_no_fabric = why_not(device, HandleKind::kFabric);
  std::replace(facts.why_no_fabric.begin(), facts.why_no_fabric.end(), '\n', ' ');
  facts.bytes = bytes;
  facts.granularity =
      std::max(allocation_granularity(device, HandleKind::kFd),
               facts.why_no_fabric.empty() ? allocation_granularity(device, HandleKind::kFabric)
                                           : std::size_t{0});
  facts.id = detail::random_u64();
  return facts;
}

HandleKind choose_kind(const std::vector<DeviceFacts>& all) {
  std::string reason;
  bool one_host = true;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string why = why_no_fabric(all[rank]);
    if (reason.empty() && !why.empty()) reason = "rank " + std::to_string(rank) + ": " + why;
    one_host = one_host && all[rank].host == all[0].host;
  }
  if (reason.empty()) return HandleKind::kFabric;
  if (one_host) return HandleKind::kFd;
  throw MoEEpError("ranks on several hosts need fabric handles (an IMEX channel), got " + reason);
}

std::string why_unreachable(const DeviceFacts& own, const DeviceFacts& peer, bool require_nvlink) {
  // Over hosts only the fabric's handles connect GPUs; importing one is the test.
  if (own.uuid == peer.uuid || own.host != peer.host || !require_nvlink) return "";
  if (link_between(own.uuid, peer.uuid) != GpuLink::kNone) return "";
  return own.uuid + " must be connected with " + peer.uuid +
         " by NVLink (require_nvlink=False takes any peer access), got no link";
}

}  // namespace moe_ep::cuda
