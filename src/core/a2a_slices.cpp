#include "core/a2a_slices.hpp"

#include <map>
#include <mutex>
#include <set>

namespace moe_ep::detail {
namespace {

struct Slices {
  std::mutex mutex;
  std::map<const void*, std::unique_ptr<A2aSlice>> by_address;
};

Slices& slices() {
  static auto* instance = new Slices();  // outlives the driver, which frees what they hold
  return *instance;
}

std::unique_ptr<A2aSlice> make_slice(const protocol::Workspace& workspace, Device device) {
  auto slice = std::make_unique<A2aSlice>();
  slice->device = device;
  slice->rank = workspace.rank;
  slice->num_ranks = workspace.layout.num_ranks;
  const Platform& platform = platform_of(device);
  PlatformOptions options;
  options.device = device;
  slice->record = platform.create_record(device);
  slice->backend = platform.create_backend(options, slice->record);
  return slice;
}

// Ranks of one group size on one device take each other for members of one group.
void share_devices(Slices& all, const A2aSlice& added) {
  std::set<std::int32_t> ranks;
  const auto beside = [&](const A2aSlice& slice) {
    return slice.device == added.device && slice.num_ranks == added.num_ranks;
  };
  for (const auto& [address, slice] : all.by_address) {
    if (beside(*slice)) ranks.insert(slice->rank);
  }
  for (const auto& [address, slice] : all.by_address) {
    if (beside(*slice)) slice->backend->share_device(static_cast<int>(ranks.size()));
  }
}

}  // namespace

const Platform& platform_of(Device device) {
  return device.type == Device::kCpu ? host_platform() : cuda_platform();
}

A2aSlice& begin_slice(const protocol::Workspace& workspace, Device device) {
  Slices& all = slices();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<A2aSlice>& slice = all.by_address[workspace.own()];
  if (slice == nullptr || !(slice->device == device)) {
    slice = make_slice(workspace, device);
  }
  slice->rank = workspace.rank;
  slice->num_ranks = workspace.layout.num_ranks;
  slice->max_dispatch_bytes = 0;
  slice->max_combine_bytes = 0;
  slice->num_tokens = 0;
  share_devices(all, *slice);
  return *slice;
}

A2aSlice& slice_of(const protocol::Workspace& workspace, Device device) {
  {
    Slices& all = slices();
    const std::lock_guard lock(all.mutex);
    const auto found = all.by_address.find(workspace.own());
    if (found != all.by_address.end() && found->second->device == device) return *found->second;
  }
  return begin_slice(workspace, device);
}

}  // namespace moe_ep::detail
