// Fibers: stacks that take turns on one operating system thread.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace moe_ep::emulator {

// Sanitizers make frames several times as large.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr std::size_t kStackBytes = 256 << 10;
#else
inline constexpr std::size_t kStackBytes = 64 << 10;
#endif

struct Fiber {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context{};
#endif
  std::byte* stack = nullptr;  // lowest byte; of a thread's own stack only sanitizers need it
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
};

// Makes `fiber` start `entry` at its next turn; gives it a stack, with a guard page below, if it
// has none. `entry` must not return.
void arm(Fiber& fiber, void (*entry)());

// First statement of an entry.
void begin_turn(Fiber& fiber);

// Stops `from` and goes on with `to`. `ends`: nobody will go on with `from`.
void switch_fiber(Fiber& from, Fiber& to, bool ends = false);

}  // namespace moe_ep::emulator
