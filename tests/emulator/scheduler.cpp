// Who runs next, and what time it is.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "machine.hpp"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace moe_ep::emulator {
namespace {

constexpr std::uint64_t kTurnNs = 10;
constexpr std::uint64_t kIdleShare = 128;  // a sleep is at least this part of the idle time
constexpr std::uint64_t kForever = 3'600'000'000'000;  // nothing but polls for so long: a deadlock

}  // namespace

Machine& Machine::get() {
  static Machine machine;
  static const bool configured = [] {
    const auto number = [](const char* name, int otherwise) {
      const char* text = std::getenv(name);
      return text == nullptr ? otherwise : std::atoi(text);
    };
    machine.configure({number("MOE_EP_EMULATOR_DEVICES", 1), number("MOE_EP_EMULATOR_SMS", 8),
                       static_cast<std::uint64_t>(number("MOE_EP_EMULATOR_SEED", 1))});
    return true;
  }();
  static_cast<void>(configured);
  return machine;
}

void configure(const Config& config) {
  Machine::get().configure(config);
}

void Machine::configure(const Config& config) {
  config_ = config;
  random_ = config.seed * 0x9e3779b97f4a7c15u + 1;
  streams_.clear();
  devices_ = std::vector<Device>(static_cast<std::size_t>(config.num_devices));
  for (Device& device : devices_) {
    device.free_threads.assign(static_cast<std::size_t>(config.num_sms), kThreadsPerSm);
    device.default_stream.device = &device;
    streams_.push_back(&device.default_stream);
  }
}

std::uint64_t Machine::draw(std::uint64_t below) {
  // splitmix64
  std::uint64_t z = random_ += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (z ^ z >> 31) % below;
}

void Machine::resume(Lane& lane, Fiber& from, bool ends) {
  running_ = &lane;
  threadIdx.x = lane.warp->index * kLanes + lane.index;
  switch_fiber(from, lane.fiber, ends);
}

// Lanes go in a circle, so that whoever is first in a turn is not first in all of them.
void Machine::leave(bool ends) {
  Lane& lane = *running_;
  const std::uint32_t ready = lane.warp->runnable & ~lane.warp->yielded;
  if (ready == 0) {
    switch_fiber(lane.fiber, scheduler_, ends);
    return;
  }
  const std::uint32_t turned = std::rotr(ready, static_cast<int>(lane.index));
  const unsigned next = (lane.index + static_cast<unsigned>(std::countr_zero(turned))) % kLanes;
  resume(lane.warp->lanes[next], lane.fiber, ends);
}

void Machine::sleep(std::uint64_t ns) {
  Warp& warp = *running_->warp;
  // See the head of machine.hpp. A share of the idle time, so that a timeout is not overslept much.
  const std::uint64_t wake = now_ + std::max(ns, (now_ - last_act_) / kIdleShare);
  warp.wake_ns = warp.wake_ns == 0 ? wake : std::min(warp.wake_ns, wake);
  warp.yielded |= 1u << running_->index;
  leave();
}

void Machine::act() {
  last_act_ = now_;
  idle_turns_ = 0;
  running_->warp->acted = true;
}

void Machine::make_runnable(Warp& warp, std::uint32_t lanes) {
  const bool was_blocked = warp.runnable == 0 && &warp != running_->warp;
  warp.runnable |= lanes;
  if (was_blocked) busy_.push_back(&warp);
}

// Puts a warp whose turn is over where the next turns look for it.
void Machine::file(Warp& warp) {
  if (warp.runnable == 0) {
    if (warp.at_meeting != 0) {
      const std::string text = "lanes of a warp meet at different places: " + describe(warp);
      fault(text.c_str());
    }
    return;
  }
  if (!warp.awake && warp.wake_ns != 0 && !warp.acted) {
    sleeping_.emplace(warp.wake_ns, &warp);
  } else {
    (warp.acted ? busy_ : polling_).push_back(&warp);
  }
}

void Machine::take_turn(Warp& warp) {
  Block& block = *warp.block;
  warp.yielded = 0;
  warp.acted = warp.awake = false;
  warp.wake_ns = 0;
  blockIdx.x = block.index;
  blockDim.x = block.kernel->work.threads;
  gridDim.x = block.kernel->work.blocks;
  const int first = static_cast<int>(draw(kLanes));
  const int lane = std::countr_zero(std::rotr(warp.runnable, first)) + first;
  resume(warp.lanes[static_cast<unsigned>(lane) % kLanes], scheduler_, false);
  running_ = nullptr;
  if (warp.exited != warp.present) {
    file(warp);
    return;
  }
  if (std::all_of(block.warps.begin(), block.warps.end(),
                  [](const Warp* w) { return w->exited == w->present; })) {
    end_block(block);
  }
}

// Those who poll get fewer turns than those who work, or all time would go by in polls.
Warp* Machine::pick() {
  while (!sleeping_.empty() &&
         (sleeping_.begin()->first <= now_ || (busy_.empty() && polling_.empty() && !changed_))) {
    now_ = std::max(now_, sleeping_.begin()->first);
    polling_.push_back(sleeping_.begin()->second);
    sleeping_.erase(sleeping_.begin());
  }
  auto& from = !busy_.empty() && (polling_.empty() || draw(8) != 0) ? busy_ : polling_;
  if (from.empty()) return nullptr;
  std::size_t index = draw(from.size());
  // Not among those who poll: time flies while there are no others, and must not overtake anybody.
  for (int tries = 0; &from == &busy_ && tries < 4 && from[index]->block->kernel->slow; ++tries)
    index = draw(from.size());
  std::swap(from[index], from.back());
  Warp* warp = from.back();
  from.pop_back();
  return warp;
}

void Machine::step() {
  now_ += kTurnNs;
  ++idle_turns_;
  // Slowly enough for everybody to have looked many times before a timeout is over.
  if (busy_.empty()) now_ += (now_ - last_act_) / (16 * (kIdleShare + polling_.size()));
  const bool advances = changed_;
  if (advances) advance();
  Warp* warp = pick();
  if (warp != nullptr) {
    take_turn(*warp);
  } else if (!advances) {
    report_deadlock("nobody can run");
  }
  if (now_ - last_act_ > kForever) report_deadlock("nothing happens but polls");
}

std::string describe(const Warp& warp) {
  char text[256];
  std::snprintf(text, sizeof text,
                "operation %llu block %u warp %u: lanes %08x at a collective (kind %d), %08x at "
                "__syncthreads, %08x running or polling, %08x exited",
                static_cast<unsigned long long>(warp.block->kernel->number), warp.block->index,
                warp.index, warp.at_meeting, static_cast<int>(warp.meeting), warp.at_barrier,
                warp.runnable, warp.exited);
  return text;
}

void Machine::report_deadlock(const char* why) {
  std::fprintf(stderr, "CUDA emulator: deadlock, %s\n", why);
  int lines = 0;
  for (const auto& block : blocks_) {
    for (const Warp* warp : block->warps) {
      if (warp->exited == warp->present || ++lines > 64) continue;
      std::fprintf(stderr, "  %s\n", describe(*warp).c_str());
    }
  }
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    for (const Device::Waiting& waiting : devices_[device].waiting) {
      std::fprintf(stderr, "  operation %llu: block %u of %u has no room on device %zu\n",
                   static_cast<unsigned long long>(waiting.kernel->number),
                   waiting.kernel->next_block, waiting.kernel->work.blocks, device);
    }
  }
  std::abort();
}

void fault(const char* what) {
  const Lane* lane = Machine::get().running();
  std::fprintf(stderr, "CUDA emulator: %s", what);
  if (lane != nullptr) {
    std::fprintf(stderr, " (operation %llu block %u thread %u)",
                 static_cast<unsigned long long>(lane->warp->block->kernel->number),
                 lane->warp->block->index, threadIdx.x);
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

}  // namespace moe_ep::emulator
