/// @file
/// Warnings: a transport that was asked for and is not there, a fallback taken.
#pragma once

#include <functional>
#include <string>

#include <moe_ep/export.hpp>

namespace moe_ep {

/// Where warnings go; the default writes `moe_ep: message` to standard error. An empty function
/// restores it. The sink may be called from any thread that makes a library call.
MOE_EP_API void set_log_sink(std::function<void(const std::string& message)> sink);

}  // namespace moe_ep
