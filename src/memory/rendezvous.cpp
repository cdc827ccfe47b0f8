#include "memory/rendezvous.hpp"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include <moe_ep/error.hpp>

namespace moe_ep::memory {
namespace {

std::string_view environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

}  // namespace

std::string rendezvous_directory() {
  const auto chosen = environment("MOE_EP_RENDEZVOUS_DIR");
  if (!chosen.empty()) return std::filesystem::absolute(chosen).string();
  const std::string runtime(environment("XDG_RUNTIME_DIR"));
  if (runtime.starts_with('/') && ::access(runtime.c_str(), W_OK | X_OK) == 0) return runtime;
  return "/tmp";
}

std::chrono::milliseconds rendezvous_timeout() {
  constexpr int kDefaultSec = 60;
  constexpr int kMaxSec = 86400;
  const auto text = environment("MOE_EP_RENDEZVOUS_TIMEOUT_SEC");
  if (text.empty()) return std::chrono::seconds(kDefaultSec);
  int seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || seconds < 1 ||
      seconds > kMaxSec) {
    throw MoEEpError("MOE_EP_RENDEZVOUS_TIMEOUT_SEC: must be a number in 1..86400, got '" +
                     std::string(text) + "'");
  }
  return std::chrono::seconds(seconds);
}

}  // namespace moe_ep::memory
