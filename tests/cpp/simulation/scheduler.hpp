// A seeded scheduler of fibers: who runs next, and which pending store becomes visible next, is
// drawn from one seed, so that every interleaving can be had again.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace moe_ep::testing::simulation {

class Scheduler {
 public:
  explicit Scheduler(std::uint64_t seed) : random_(seed) {}

  // Starts a fiber; it runs when run() picks it.
  void spawn(std::function<void()> body) {
    auto fiber = std::make_unique<Fiber>();
    fiber->body = std::move(body);
    fiber->scheduler = this;
    fibers_.push_back(std::move(fiber));
  }

  // What happens besides fibers, now and then: `drain()` makes one pending store visible.
  void on_drain(std::function<void()> drain) { drain_ = std::move(drain); }

  // Runs until all fibers have ended.
  void run() {
    for (const auto& fiber : fibers_)
      start(*fiber);
    std::vector<Fiber*> live;
    for (const auto& fiber : fibers_)
      live.push_back(fiber.get());
    while (!live.empty()) {
      ++now_;
      if (drain_ && draw(2) == 0) drain_();
      const std::size_t index = draw(live.size());
      current_ = live[index];
      ::swapcontext(&own_, &current_->context);
      if (current_->done) live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }

  // Called by a fiber: lets others run.
  void yield() { ::swapcontext(&current_->context, &own_); }
  // The same, now and then.
  void maybe_yield() {
    if (draw(4) == 0) yield();
  }

  std::uint64_t now() const { return now_; }
  std::size_t draw(std::size_t count) { return static_cast<std::size_t>(random_() % count); }

 private:
  static constexpr std::size_t kStackBytes = 96 << 10;

  struct Fiber {
    std::function<void()> body;
    Scheduler* scheduler = nullptr;
    ucontext_t context{};
    std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    bool done = false;
  };

  // makecontext passes ints: a pointer in two halves.
  static void enter(unsigned high, unsigned low) {
    const auto address = static_cast<std::uintptr_t>(high) << 32 | low;
    auto* fiber = reinterpret_cast<Fiber*>(address);
    fiber->body();
    fiber->done = true;
    fiber->scheduler->yield();
  }

  void start(Fiber& fiber) {
    ::getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    const auto address = reinterpret_cast<std::uintptr_t>(&fiber);
    ::makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Scheduler::enter), 2,
                  static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::function<void()> drain_;
  ucontext_t own_{};
  Fiber* current_ = nullptr;
  std::uint64_t now_ = 0;
};

}  // namespace moe_ep::testing::simulation
