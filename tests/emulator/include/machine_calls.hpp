// What a running CUDA thread asks of the emulated machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moe_ep::emulator {

// Collectives of a warp, and of a block.
enum class Meeting : std::uint8_t {
  kSyncWarp,
  kShuffle,
  kShuffleXor,
  kShuffleDown,
  kShuffleUp,
  kBallot,
  kReduceOr,
};
enum class Barrier : std::uint8_t { kPlain, kOr };

// Waits for the 32 lanes of the warp; returns what each of them brought, valid until this lane's
// next meeting. Aborts if lanes meet at different collectives.
const std::uint64_t* meet(Meeting kind, std::uint32_t mask, std::uint64_t value);
// Waits for all threads of the block that have not exited; whether `value` held in one of them.
bool barrier(Barrier kind, bool value);

// Lets others run: before every load of a word that another rank may write, or whoever polls it
// would run alone for ever.
void yield();
// The same, now and then: where an interleaving may matter, but nobody waits.
void maybe_yield();
// Something may have changed for those who poll: time goes on at its slow pace.
void act();
void sleep(std::uint64_t ns);
std::uint64_t now();

// Programmatic dependent launch.
void trigger_dependents();
void await_producers();

// Shared memory of the running thread's block, full of rubbish at first. `tag` names the object.
void* shared_memory(const void* tag, std::size_t bytes);
void* dynamic_shared_memory();

// Aborts, and says which thread did what.
[[noreturn]] void fault(const char* what);

}  // namespace moe_ep::emulator
