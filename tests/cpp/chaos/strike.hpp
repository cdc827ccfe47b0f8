// Lets a signal or exit() strike this process at some point of a phase.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace moe_ep::testing::chaos {

// Runs `phase` and raises `signal` (SIGKILL or SIGSTOP) somewhere within it: `fraction` (0..1) of
// `expected` after its start. If the phase is over by then, right after it.
void strike_with_signal(int signal, double fraction, std::chrono::nanoseconds expected,
                        const std::function<void()>& phase);

// Runs `phase` while another thread calls exit(status) as above. Does not return.
[[noreturn]] void strike_with_exit(int status, double fraction, std::chrono::nanoseconds expected,
                                   const std::function<void()>& phase);

}  // namespace moe_ep::testing::chaos
