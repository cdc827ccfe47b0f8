// Bounded waits and how a step that ends early says why.
//
// No wait in the library is unbounded, in Release builds too. A wait that runs out does not throw
// and does not trap: the step ends with a StepStatus, which the host turns into a typed error.
#pragma once

#include <cstdint>

#include <moe_ep/rank_mask.hpp>
#include <moe_ep/types.hpp>

#include "protocol/concepts.hpp"
#include "protocol/epoch.hpp"

namespace moe_ep::protocol {

enum class StepResult : std::uint32_t {
  kOk = 0,
  kTimeout,   // `missing` did not raise their flags in time
  kMismatch,  // `peer` announced `got` where this rank expects `want`
  kCorrupt,   // `peer` announced a row count outside 0..T
};

// How a step ended. `field` indexes StepSignature for a dispatch, CombineField for a combine.
struct StepStatus {
  StepResult result = StepResult::kOk;
  Phase phase = Phase::kDispatch;
  Epoch epoch = 0;
  RankMask missing;
  std::int32_t peer = -1;
  std::int32_t field = -1;
  std::int64_t want = 0;
  std::int64_t got = 0;

  MOE_EP_HD constexpr bool ok() const { return result == StepResult::kOk; }
};

// Polls `arrived()` until it holds or the clock reaches `deadline_ns`. Looks at the clock only once
// in kPollsPerClock, because a clock costs more than a flag; the last look follows the clock's.
template <Memory M, class Arrived>
MOE_EP_HD bool wait_until(M& memory, std::uint64_t deadline_ns, Arrived&& arrived) {
  constexpr std::uint32_t kPollsPerClock = 32;
  for (std::uint32_t polls = 1;; ++polls) {
    if (arrived()) return true;
    if (polls % kPollsPerClock == 0 && memory.now_ns() >= deadline_ns) return arrived();
    memory.pause(polls);
  }
}

// Waits until `arrived(peer)` holds for every peer of `peers`; returns those for which it does not
// when the time is up. After the first peer that is late the others get one look each.
template <Memory M, class Arrived>
MOE_EP_HD RankMask await_peers(M& memory, const RankMask& peers, std::uint64_t deadline_ns,
                               Arrived&& arrived) {
  RankMask missing;
  peers.for_each([&](std::int32_t peer) {
    if (!wait_until(memory, deadline_ns, [&] { return arrived(peer); })) missing.set(peer);
  });
  return missing;
}

}  // namespace moe_ep::protocol
