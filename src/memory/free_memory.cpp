#include "memory/free_memory.hpp"

#include <algorithm>
#include <fstream>

#include <moe_ep/error.hpp>

namespace moe_ep::memory {
namespace {

// Sum of the lines "key value" that start with one of two keys; empty if the first is not there.
std::optional<std::uint64_t> sum_of(const std::string& path, const std::string& needed,
                                    const std::string& optional) {
  std::ifstream file(path);
  std::optional<std::uint64_t> needed_value;
  std::uint64_t optional_value = 0;
  std::string key;
  std::string rest;
  for (std::uint64_t value = 0; file >> key >> value; std::getline(file, rest)) {
    if (key == needed) needed_value = value;
    if (key == optional) optional_value = value;
  }
  if (!needed_value) return std::nullopt;
  return *needed_value + optional_value;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // not there, or "max"
}

std::optional<std::uint64_t> left_in_cgroup(const std::string& root) {
  std::ifstream membership(root + "/proc/self/cgroup");
  for (std::string line; std::getline(membership, line);) {
    if (!line.starts_with("0::")) continue;
    const std::string group = root + "/sys/fs/cgroup" + line.substr(3);
    const auto limit = number_in(group + "/memory.max");
    const auto used = number_in(group + "/memory.current");
    if (!limit || !used) return std::nullopt;
    const auto cache = sum_of(group + "/memory.stat", "inactive_file", "active_file").value_or(0);
    const std::uint64_t held = *used - std::min(*used, cache);
    return *limit - std::min(*limit, held);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> free_memory(const std::string& root) {
  auto on_host = sum_of(root + "/proc/meminfo", "MemAvailable:", "SwapFree:");
  if (on_host) *on_host *= 1024;  // it is in KiB
  const auto in_cgroup = left_in_cgroup(root);
  if (on_host && in_cgroup) return std::min(*on_host, *in_cgroup);
  return on_host ? on_host : in_cgroup;
}

void require_free_memory(std::uint64_t bytes, const std::string& root) {
  const auto free = free_memory(root);
  if (!free || bytes <= *free) return;
  throw MoEEpError("shared memory: all slices must fit into free memory, got " +
                   std::to_string(bytes) + " bytes wanted and " + std::to_string(*free) + " free");
}

}  // namespace moe_ep::memory
