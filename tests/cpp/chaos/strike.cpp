#include "chaos/strike.hpp"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace moe_ep::testing::chaos {
namespace {

using Clock = std::chrono::steady_clock;

volatile sig_atomic_t pending_signal = 0;

void strike(int) {
  const int signal = pending_signal;
  pending_signal = 0;
  if (signal != 0) ::raise(signal);
}

std::chrono::nanoseconds delay_of(double fraction, std::chrono::nanoseconds expected) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(expected * fraction);
}

}  // namespace

void strike_with_signal(int signal, double fraction, std::chrono::nanoseconds expected,
                        const std::function<void()>& phase) {
  struct sigaction action{};
  action.sa_handler = strike;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGALRM, &action, nullptr);
  pending_signal = signal;
  itimerval timer{};
  const auto delay = delay_of(fraction, expected);
  timer.it_value.tv_usec =
      static_cast<suseconds_t>(std::clamp<long long>(delay.count() / 1000, 1, 900'000));
  ::setitimer(ITIMER_REAL, &timer, nullptr);
  phase();
  strike(0);  // unless it has struck
}

void strike_with_exit(int status, double fraction, std::chrono::nanoseconds expected,
                      const std::function<void()>& phase) {
  const auto when = Clock::now() + delay_of(fraction, expected);
  std::thread([status, when] {
    std::this_thread::sleep_until(when);
    std::exit(status);
  }).detach();
  phase();
  for (;;)
    ::pause();  // the other thread's exit() ends this one
}

}  // namespace moe_ep::testing::chaos
