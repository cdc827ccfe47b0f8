// Where and how long ranks of one host look for each other.
#pragma once

#include <chrono>
#include <string>

namespace moe_ep::memory {

// $MOE_EP_RENDEZVOUS_DIR, else $XDG_RUNTIME_DIR if it can be written to, else /tmp. Absolute.
std::string rendezvous_directory();

// $MOE_EP_RENDEZVOUS_TIMEOUT_SEC (1..86400), else 60 s.
// @throws MoEEpError for anything else in it
std::chrono::milliseconds rendezvous_timeout();

}  // namespace moe_ep::memory
