/// @file
/// What an instance has done so far: plain counts, kept at no cost worth naming.
#pragma once

#include <array>
#include <cstdint>

namespace moe_ep {

// X(field) of PhaseStats.
#define MOE_EP_FOR_EACH_PHASE_COUNTER(X) \
  X(steps)                               \
  X(tokens)                              \
  X(rows_sent)                           \
  X(rows_received)                       \
  X(bytes_sent)                          \
  X(bytes_received)

/// Dispatches, or combines, of one instance.
///
/// `steps` counts those that ended well, on GPUs those that were enqueued without an error; replays
/// of a captured graph are not seen. `tokens` are this rank's own ones in these steps.
///
/// Rows and bytes are those that went to other ranks, or came from them; what stays on the rank is
/// not counted. A row is one token on one rank, bytes are those of all its payloads (dispatch), or
/// of the row in its wire format (combine). Counting rows of GPUs would mean reading their memory:
/// there they stay 0, and bytes too.
struct PhaseStats {
#define MOE_EP_FIELD(name) std::int64_t name = 0;
  MOE_EP_FOR_EACH_PHASE_COUNTER(MOE_EP_FIELD)
#undef MOE_EP_FIELD
};

// X(field) of CommunicationStats, behind its phases.
#define MOE_EP_FOR_EACH_EVENT_COUNTER(X) \
  X(timeouts)                            \
  X(mismatches)                          \
  X(corrupt_counts)                      \
  X(recoveries)                          \
  X(abandoned_rounds)

/// What MoEEpCommunication::stats() returns. Counts start at 0 with the instance and never go back;
/// recover() and checkpoints keep them, so does destroy().
///
/// `timeouts`, `mismatches` and `corrupt_counts` (a peer announced a number of rows out of range)
/// are steps that failed so and were noticed by this instance: on GPUs in its next call.
/// `recoveries` are calls of recover() that went through. `abandoned_rounds` never saw the end of
/// their combine: destroy(), recover() or a failed combine came before. Between calls
///
///   dispatch.steps == combine.steps + abandoned_rounds + (a round is open ? 1 : 0)
///
/// except that a round which another instance's recover() has ended counts as open until the next
/// dispatch.
struct CommunicationStats {
  std::array<std::int64_t, 3> steps_by_transport{};  ///< of dispatch.steps, indexed by Transport
  PhaseStats dispatch;
  PhaseStats combine;
#define MOE_EP_FIELD(name) std::int64_t name = 0;
  MOE_EP_FOR_EACH_EVENT_COUNTER(MOE_EP_FIELD)
#undef MOE_EP_FIELD
};

}  // namespace moe_ep
