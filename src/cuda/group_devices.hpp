// What the ranks of a group must know of each other's GPUs before they share memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/vmm_handle.hpp"

namespace moe_ep::cuda {

// One rank's announcement. Travels as text.
struct DeviceFacts {
  std::string host;           // memory::host_identity()
  std::string uuid;           // of the GPU
  std::string why_no_fabric;  // empty: fabric handles work
  std::uint64_t bytes = 0;    // of a slice
  std::uint64_t granularity = 0;
  std::int32_t fixed_kind = -1;  // HandleKind that memory which is there already was made for
  std::uint64_t id = 0;          // a random number

  std::string encode() const;
  // @throws MoEEpError
  static DeviceFacts decode(const std::string& text);
};

// @throws MoEEpError with a reason why `device` cannot hold a slice
DeviceFacts read_device(int device, std::size_t bytes);

// The kind that all can use. The same on every rank.
// @throws MoEEpError if there is none
HandleKind choose_kind(const std::vector<DeviceFacts>& all);

// Why this rank's GPU cannot reach a peer's; empty if it can, or if only trying can tell.
std::string why_unreachable(const DeviceFacts& own, const DeviceFacts& peer, bool require_nvlink);

}  // namespace moe_ep::cuda
