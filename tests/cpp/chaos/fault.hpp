// What may happen to a rank in a step, and what its peers must make of it.
#pragma once

#include <cstdint>
#include <ostream>

namespace moe_ep::testing::chaos {

enum class Fault : std::int32_t {
  kNone,
  kKillBeforeDispatch,
  kKillInDispatch,  // at a random point; right after it where it was over by then
  kKillBetween,     // after dispatch, before combine
  kKillInCombine,
  kExitBetween,
  kExitInDispatch,  // exit() on another thread
  kStopInDispatch,  // SIGSTOP until the peers have given up; SIGCONT later
  kStopBetween,
  kStopInCombine,
  kThrowBetween,         // an exception of the application; the process stays
  kMismatchWidth,        // hidden_states of another width
  kMismatchTokens,       // another runtime_max_tokens_per_rank
  kBadArgument,          // top_k of another step: refused before anything is sent, then done right
  kDelayBeforeDispatch,  // shorter than the timeout
  kDelayBetween,
  kKillInRecover,  // at one of its collective calls, while all recover
  kNumFaults,
};

const char* name_of(Fault fault);
inline std::ostream& operator<<(std::ostream& out, Fault fault) {
  return out << name_of(fault);
}

// Whether the process ends by itself, or is stopped.
bool ends_process(Fault fault);
bool stops_process(Fault fault);
// Whether peers hear nothing of the rank any more in this step.
bool loses_rank(Fault fault);
bool is_mismatch(Fault fault);
// Whether every peer gets through the dispatch, or none does. Then all of them name the lost rank
// alone; otherwise one that got through may also name peers that gave up in the dispatch.
bool strikes_between_phases(Fault fault);

}  // namespace moe_ep::testing::chaos
