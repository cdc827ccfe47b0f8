// The counts behind MoEEpCommunication::stats(): written by the thread that runs the steps, read by
// any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <moe_ep/stats.hpp>
#include <moe_ep/types.hpp>

#include "protocol/step.hpp"
#include "protocol/wait.hpp"

namespace moe_ep::detail {

// One writer at a time, so that adding needs no locked instruction.
class Counter {
 public:
  void add(std::int64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  std::int64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

// Rows of one step that go to other ranks and come from them; a combine has them the other way
// round.
struct Traffic {
  std::int64_t rows_sent = 0;
  std::int64_t rows_received = 0;

  // Of the dispatch that has just ended on a host.
  static Traffic of(const protocol::Workspace& workspace) {
    Traffic traffic;
    for (std::int32_t rank = 0; rank < workspace.layout.num_ranks; ++rank) {
      if (rank == workspace.rank) continue;
      traffic.rows_sent += workspace.send_counts()[rank];
      traffic.rows_received += workspace.recv_counts()[rank];
    }
    return traffic;
  }
  Traffic back() const { return {rows_received, rows_sent}; }
};

struct PhaseCounters {
#define MOE_EP_FIELD(name) Counter name;
  MOE_EP_FOR_EACH_PHASE_COUNTER(MOE_EP_FIELD)
#undef MOE_EP_FIELD

  void add(std::int64_t num_tokens, const Traffic& traffic, std::int64_t row_bytes) {
    steps.add(1);
    tokens.add(num_tokens);
    rows_sent.add(traffic.rows_sent);
    rows_received.add(traffic.rows_received);
    bytes_sent.add(traffic.rows_sent * row_bytes);
    bytes_received.add(traffic.rows_received * row_bytes);
  }
  PhaseStats read() const {
    PhaseStats stats;
#define MOE_EP_READ(name) stats.name = name.get();
    MOE_EP_FOR_EACH_PHASE_COUNTER(MOE_EP_READ)
#undef MOE_EP_READ
    return stats;
  }
};

struct Counters {
  Counter steps_by_transport[3];
  PhaseCounters dispatch;
  PhaseCounters combine;
#define MOE_EP_FIELD(name) Counter name;
  MOE_EP_FOR_EACH_EVENT_COUNTER(MOE_EP_FIELD)
#undef MOE_EP_FIELD

  void add_failure(protocol::StepResult result) {
    switch (result) {
      case protocol::StepResult::kOk:
        return;
      case protocol::StepResult::kTimeout:
        return timeouts.add(1);
      case protocol::StepResult::kMismatch:
        return mismatches.add(1);
      case protocol::StepResult::kCorrupt:
        return corrupt_counts.add(1);
    }
  }
  CommunicationStats read() const {
    CommunicationStats stats;
    for (std::size_t transport = 0; transport < stats.steps_by_transport.size(); ++transport)
      stats.steps_by_transport[transport] = steps_by_transport[transport].get();
    stats.dispatch = dispatch.read();
    stats.combine = combine.read();
#define MOE_EP_READ(name) stats.name = name.get();
    MOE_EP_FOR_EACH_EVENT_COUNTER(MOE_EP_READ)
#undef MOE_EP_READ
    return stats;
  }
};

}  // namespace moe_ep::detail
