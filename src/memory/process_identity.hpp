// Who shares memory with whom: which host and which process a rank lives in.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace moe_ep::memory {

// The kernel's boot id. Equal for everything that runs on one host, containers included; hostnames
// may collide or differ within a host. Empty where /proc is not mounted.
std::string host_identity();

// A random number of this process, another one after fork(). Process ids are no identity: those of
// different namespaces collide.
using ProcessToken = std::array<std::uint64_t, 2>;
ProcessToken process_token();

}  // namespace moe_ep::memory
