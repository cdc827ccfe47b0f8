#include "core/log.hpp"

#include <cstdio>
#include <mutex>
#include <utility>

#include <moe_ep/log.hpp>

namespace moe_ep {
namespace {

std::mutex sink_mutex;
std::function<void(const std::string&)>& current_sink() {
  static auto* sink = new std::function<void(const std::string&)>();  // outlives every caller
  return *sink;
}

}  // namespace

void set_log_sink(std::function<void(const std::string& message)> sink) {
  const std::lock_guard lock(sink_mutex);
  current_sink() = std::move(sink);
}

namespace detail {

void log_warning(const std::string& message) {
  std::function<void(const std::string&)> sink;
  {
    const std::lock_guard lock(sink_mutex);
    sink = current_sink();
  }
  if (sink) {
    sink(message);
  } else {
    std::fprintf(stderr, "moe_ep: %s\n", message.c_str());
  }
}

}  // namespace detail
}  // namespace moe_ep
