// How much memory there is to take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace moe_ep::memory {

// Bytes that this process could still fill: what the host has free, or what the memory cgroup (v2)
// leaves, whichever is less. Empty where neither says. Reclaimable cache counts as free.
// @param root in front of /proc and /sys, for tests
std::optional<std::uint64_t> free_memory(const std::string& root = "");

// The kernel hands out shared memory that it does not have, and then kills a process of its choice.
// What is plainly too much is therefore refused beforehand.
// @throws MoEEpError
void require_free_memory(std::uint64_t bytes, const std::string& root = "");

}  // namespace moe_ep::memory
