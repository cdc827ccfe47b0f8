// A block: its start, and what its threads do together.
#include <cuda_runtime.h>

#include <bit>
#include <cstring>

#include "machine.hpp"

namespace moe_ep::emulator {
namespace {

constexpr int kRubbish = 0xb5;

std::unique_ptr<std::byte[]> rubbish(std::size_t bytes) {
  auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::memset(memory.get(), kRubbish, bytes);
  return memory;
}

Machine& machine() {
  return Machine::get();
}
Warp& warp() {
  return *machine().running()->warp;
}
Block& block() {
  return *warp().block;
}
std::uint32_t own_bit() {
  return 1u << machine().running()->index;
}

void thread_main() {
  begin_turn(machine().running()->fiber);
  block().kernel->work.run();
  machine().exit_lane();
}

// Ends the barrier if all threads are there that have not exited.
void release(Block& waiting) {
  if (waiting.arrived == 0 || waiting.arrived != waiting.live) return;
  for (const Warp* one : waiting.warps) {
    if (one->at_barrier == 0 || one->exited == 0) continue;
    fault(("a part of a warp has exited before __syncthreads: " + describe(*one)).c_str());
  }
  waiting.result[waiting.round++ % 2] = waiting.any;
  waiting.any = false;
  waiting.arrived = 0;
  for (Warp* one : waiting.warps) {
    if (one->at_barrier != 0) machine().make_runnable(*one, std::exchange(one->at_barrier, 0u));
  }
}

}  // namespace

void Machine::start_block(Device::Waiting& waiting, std::size_t sm) {
  auto started = std::make_unique<Block>();
  started->kernel = waiting.kernel;
  started->stream = waiting.stream;
  started->index = waiting.kernel->next_block++;
  started->sm = sm;
  started->live = waiting.kernel->work.threads;
  for (unsigned first = 0; first < started->live; first += kLanes) {
    if (free_warps_.empty()) {
      warps_.push_back(std::make_unique<Warp>());
      free_warps_.push_back(warps_.back().get());
    }
    Warp& fresh = *free_warps_.back();
    free_warps_.pop_back();
    fresh.block = started.get();
    fresh.index = first / kLanes;
    fresh.present = started->live - first >= kLanes ? ~0u : (1u << (started->live - first)) - 1;
    fresh.runnable = fresh.present;
    fresh.yielded = fresh.exited = fresh.at_barrier = fresh.at_meeting = 0;
    for (unsigned index = 0; index < kLanes; ++index) {
      if ((fresh.present >> index & 1) == 0) continue;
      fresh.lanes[index].warp = &fresh;
      fresh.lanes[index].index = index;
      arm(fresh.lanes[index].fiber, thread_main);
    }
    started->warps.push_back(&fresh);
    busy_.push_back(&fresh);
  }
  blocks_.push_back(std::move(started));
}

void Machine::exit_lane() {
  warp().runnable &= ~own_bit();
  warp().exited |= own_bit();
  --block().live;
  act();
  release(block());
  leave(true);
  std::abort();  // nobody goes on with an ended fiber
}

const std::uint64_t* meet(Meeting kind, std::uint32_t mask, std::uint64_t value) {
  Warp& own = warp();
  if (mask != ~0u) fault("only collectives of whole warps are emulated");
  if (own.at_meeting != 0 && own.meeting != kind) {
    fault(("lanes of a warp meet at different collectives: " + describe(own)).c_str());
  }
  const unsigned half = own.round % 2;
  own.meeting = kind;
  own.brought[half][machine().running()->index] = value;
  own.at_meeting |= own_bit();
  if (own.at_meeting == ~0u) {
    own.at_meeting = 0;
    ++own.round;
    own.runnable = ~0u;
  } else {
    own.runnable &= ~own_bit();
    machine().leave();
  }
  return own.brought[half].data();
}

bool barrier(Barrier kind, bool value) {
  Block& own = block();
  if (own.arrived != 0 && own.barrier != kind) {
    fault("threads of a block meet at different barriers");
  }
  const unsigned round = own.round;
  own.barrier = kind;
  own.any = own.any || value;
  ++own.arrived;
  warp().at_barrier |= own_bit();
  warp().runnable &= ~own_bit();
  release(own);
  if (own.round == round) machine().leave();
  return own.result[round % 2];
}

void* shared_memory(const void* tag, std::size_t bytes) {
  auto& memory = block().shared[tag];
  if (memory == nullptr) memory = rubbish(bytes);
  return memory.get();
}

void* dynamic_shared_memory() {
  static const char tag = 0;
  return shared_memory(&tag, block().kernel->work.shared_bytes);
}

void yield() {
  warp().awake = true;
  warp().yielded |= own_bit();
  machine().leave();
}

void maybe_yield() {
  if (machine().draw(4) == 0) yield();
}

void act() {
  machine().act();
}

void sleep(std::uint64_t ns) {
  machine().sleep(ns);
}

std::uint64_t now() {
  return machine().now();
}

void trigger_dependents() {
  machine().let_dependents_go(block());
}

void await_producers() {
  while (!machine().is_first(block()))
    yield();
}

}  // namespace moe_ep::emulator
