#include "fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// swapcontext() asks the kernel for the signal mask at every switch, which would be most of the
// time of a test: a warp vote is 32 switches. So the switch itself is written out where that is
// easy.
#if defined(__x86_64__)
extern "C" void moe_ep_emulator_switch(void** save, void* load);
asm(R"(
.text
.type moe_ep_emulator_switch, @function
moe_ep_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size moe_ep_emulator_switch, . - moe_ep_emulator_switch
)");
#endif

namespace moe_ep::emulator {
namespace {

#if defined(__SANITIZE_ADDRESS__)
Fiber* came_from = nullptr;
#endif

void finish_switch([[maybe_unused]] Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &bottom, &bytes);
  if (came_from->stack == nullptr) {
    came_from->stack = static_cast<std::byte*>(const_cast<void*>(bottom));
    came_from->stack_bytes = bytes;
  }
#endif
}

void allocate_stack(Fiber& fiber) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* memory = ::mmap(nullptr, page + kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || ::mprotect(memory, page, PROT_NONE) != 0) {
    std::perror("CUDA emulator: no memory for a thread's stack (or vm.max_map_count is too small)");
    std::abort();
  }
  fiber.stack = static_cast<std::byte*>(memory) + page;
  fiber.stack_bytes = kStackBytes;
}

}  // namespace

void arm(Fiber& fiber, void (*entry)()) {
  if (fiber.stack == nullptr) allocate_stack(fiber);
  fiber.fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(fiber.stack, fiber.stack_bytes);
#endif
#if defined(__x86_64__)
  // What the switch pops: six registers, then the address it returns to. A function finds its
  // stack 8 bytes off a multiple of 16, as after a call.
  auto* top = reinterpret_cast<void**>(fiber.stack + fiber.stack_bytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i)
    *--top = nullptr;
  fiber.stack_pointer = top;
#else
  ::getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = fiber.stack_bytes;
  ::makecontext(&fiber.context, entry, 0);
#endif
}

void begin_turn(Fiber& fiber) {
  finish_switch(fiber);
}

void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool ends) {
#if defined(__SANITIZE_ADDRESS__)
  came_from = &from;
  __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#endif
#if defined(__x86_64__)
  moe_ep_emulator_switch(&from.stack_pointer, to.stack_pointer);
#else
  ::swapcontext(&from.context, &to.context);
#endif
  finish_switch(from);
}

}  // namespace moe_ep::emulator
