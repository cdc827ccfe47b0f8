// What the supervisor tells a rank's process, and what it hears back. Both travel whole over a
// SOCK_SEQPACKET pair, whose end says that the process is gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "chaos/fault.hpp"

namespace moe_ep::testing::chaos {

enum class Verb : std::int32_t {
  kCreate,   // the collective constructor
  kRejoin,   // as a new member of a group that recovers
  kRecover,  // the survivors' side of it, or a late rank's own return
  kStep,
  kDestroy,  // the instance, then the process
};

struct Command {
  Verb verb = Verb::kStep;
  Fault fault = Fault::kNone;
  std::uint64_t seed = 0;        // of the step
  std::uint64_t active = 0;      // ranks that take part, as bits
  std::uint32_t fault_seed = 0;  // where in the phase the fault strikes
  bool wrong_params = false;     // kRejoin: with another top_k, which everybody must refuse
  char group[100] = {};          // path of the group's socket
};

enum class Outcome : std::int32_t {
  kDone,  // everything checked
  kTimeout,
  kMismatch,
  kBadArgument,
  kThrown,  // the exception that kThrowBetween asked for
  kError,   // another MoEEpError
  kFailed,  // whatever must not be
};

struct Reply {
  Outcome outcome = Outcome::kFailed;
  std::uint64_t named = 0;  // ranks of a timeout, as bits
  bool in_combine = false;
  std::int32_t call_ms = 0;  // of the call that failed, or of the longest
  std::int32_t num_fds = 0;
  std::int32_t num_mappings = 0;
  char text[400] = {};
};

std::string text_of(const Reply& reply);

// A socket pair's two ends: supervisor's, rank's.
struct Control {
  int supervisor = -1;
  int rank = -1;
};
Control make_control();

// False when the other end is gone.
template <class Message>
bool send(int fd, const Message& message);
// Empty when the other end is gone or the deadline passed.
template <class Message>
std::optional<Message> receive(int fd, std::chrono::milliseconds timeout);

}  // namespace moe_ep::testing::chaos
