// A point in time that bounds a whole operation, however many waits it consists of.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <span>

#include "comm/system_error.hpp"

namespace moe_ep::detail {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // Timeouts above a year count as a year, so that no caller's "forever" overflows the clock.
  explicit Deadline(std::chrono::milliseconds timeout)
      : end_(Clock::now() +
             std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(8760))) {}

  Clock::time_point end() const { return end_; }
  std::chrono::milliseconds left() const {
    return std::max(std::chrono::milliseconds(0),
                    std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()));
  }
  bool expired() const { return Clock::now() >= end_; }
  // What is left, for poll(): rounded up, so that a poll that times out means expired().
  int poll_timeout() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 60'000));
  }

 private:
  Clock::time_point end_;
};

// Waits for an event on any descriptor; false when the deadline passed without one. A poll that
// was due is done even after the deadline: what already lies in a socket is never called late.
inline bool wait_any(std::span<pollfd> fds, const Deadline& deadline, std::string_view operation) {
  for (;;) {
    const int timeout = deadline.poll_timeout();
    const int ready = ::poll(fds.data(), static_cast<nfds_t>(fds.size()), timeout);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_errno(operation, "poll", errno);
    if (ready == 0 && deadline.expired()) return false;
  }
}

// One descriptor's turn, e.g. wait_for(fd, POLLOUT, ...).
inline bool wait_for(int fd, short events, const Deadline& deadline, std::string_view operation) {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  return wait_any({&entry, 1}, deadline, operation);
}

}  // namespace moe_ep::detail
