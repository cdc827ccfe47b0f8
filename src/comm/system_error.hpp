// How a failed system call reads in this library's messages.
#pragma once

#include <string>
#include <string_view>
#include <system_error>

#include <moe_ep/error.hpp>

namespace moe_ep::detail {

inline std::string errno_text(std::string_view call, int error) {
  return std::string(call) + " failed with errno " + std::to_string(error) + " (" +
         std::generic_category().message(error) + ")";
}

[[noreturn]] inline void throw_errno(std::string_view operation, std::string_view call, int error) {
  throw MoEEpError(std::string(operation) + ": " + errno_text(call, error));
}

}  // namespace moe_ep::detail
