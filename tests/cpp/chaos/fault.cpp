#include "chaos/fault.hpp"

namespace moe_ep::testing::chaos {

const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "none";
    case Fault::kKillBeforeDispatch:
      return "kill before dispatch";
    case Fault::kKillInDispatch:
      return "kill in dispatch";
    case Fault::kKillBetween:
      return "kill between dispatch and combine";
    case Fault::kKillInCombine:
      return "kill in combine";
    case Fault::kExitBetween:
      return "exit between dispatch and combine";
    case Fault::kExitInDispatch:
      return "exit in dispatch";
    case Fault::kStopInDispatch:
      return "stop in dispatch";
    case Fault::kStopBetween:
      return "stop between dispatch and combine";
    case Fault::kStopInCombine:
      return "stop in combine";
    case Fault::kThrowBetween:
      return "throw between dispatch and combine";
    case Fault::kMismatchWidth:
      return "another row width";
    case Fault::kMismatchTokens:
      return "another tokens_per_rank";
    case Fault::kBadArgument:
      return "bad argument";
    case Fault::kDelayBeforeDispatch:
      return "delay before dispatch";
    case Fault::kDelayBetween:
      return "delay between dispatch and combine";
    case Fault::kKillInRecover:
      return "kill in recover";
    case Fault::kNumFaults:
      break;
  }
  return "unknown";
}

bool ends_process(Fault fault) {
  return (fault >= Fault::kKillBeforeDispatch && fault <= Fault::kExitInDispatch) ||
         fault == Fault::kKillInRecover;
}

bool stops_process(Fault fault) {
  return fault >= Fault::kStopInDispatch && fault <= Fault::kStopInCombine;
}

bool loses_rank(Fault fault) {
  return ends_process(fault) || stops_process(fault) || fault == Fault::kThrowBetween;
}

bool is_mismatch(Fault fault) {
  return fault == Fault::kMismatchWidth || fault == Fault::kMismatchTokens;
}

bool strikes_between_phases(Fault fault) {
  return fault == Fault::kKillBeforeDispatch || fault == Fault::kKillBetween ||
         fault == Fault::kExitBetween || fault == Fault::kStopBetween ||
         fault == Fault::kThrowBetween;
}

}  // namespace moe_ep::testing::chaos
