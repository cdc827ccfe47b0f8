#include "chaos/campaign.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <sstream>

namespace moe_ep::testing::chaos {
namespace {

// From the start of the call that fails.
constexpr int kNoticedWithinMs = 1000 * kTimeoutSec + 1000;

// Every kind once, in an order of the seed's.
std::vector<Fault> kinds(std::uint64_t seed) {
  std::vector<Fault> kinds;
  for (int kind = 1; kind < static_cast<int>(Fault::kNumFaults); ++kind)
    kinds.push_back(static_cast<Fault>(kind));
  for (std::size_t left = kinds.size(); left > 1; --left)
    std::swap(kinds[left - 1], kinds[mix(seed, 31, left) % left]);
  return kinds;
}

}  // namespace

Campaign::Campaign(const HostSuiteBackend& backend, std::string directory, std::uint64_t seed)
    : ranks_(backend), directory_(std::move(directory)), seed_(seed) {}

void Campaign::run(int first, int num_faults) {
  create();
  const std::vector<Fault> order = kinds(seed_);
  for (int number = first; number < first + num_faults; ++number) {
    const std::uint64_t seed = mix(seed_, 41, static_cast<std::uint64_t>(number));
    const Strike strike{order[static_cast<std::size_t>(number) % order.size()],
                        static_cast<int>(seed % kNumRanks), seed >> 8};
    try {
      survive(strike);
    } catch (const std::exception& error) {
      std::ostringstream text;
      text << "fault " << number << " (" << strike.fault << " of rank " << strike.victim
           << ", seed " << seed_ << "): " << error.what();
      throw std::runtime_error(text.str());
    }
    ++survived_[strike.fault];
  }
  destroy();
}

std::string Campaign::summary() const {
  std::ostringstream text;
  for (const auto& [fault, count] : survived_)
    text << (text.tellp() > 0 ? ", " : "") << fault << ' ' << count;
  return text.str();
}

void Campaign::create() {
  for (int rank = 0; rank < kNumRanks; ++rank)
    ranks_.start(rank);
  regroup(kEverybody, Verb::kCreate);
  // Once, since a process may keep what its first step took.
  start_step(kEverybody, nullptr);
  for (int rank = 0; rank < kNumRanks; ++rank)
    whole_[static_cast<std::size_t>(rank)] = expect(rank, Outcome::kDone);
}

void Campaign::destroy() {
  for (int rank = 0; rank < kNumRanks; ++rank) {
    ranks_.say(rank, {.verb = Verb::kDestroy});
    const Reply reply = expect(rank, Outcome::kDone);
    const Reply before = ranks_.baseline(rank);
    if (reply.num_fds != before.num_fds || reply.num_mappings != before.num_mappings)
      fail(rank, "must hold nothing after destroy(), got " + std::to_string(reply.num_fds) +
                     " descriptors and " + std::to_string(reply.num_mappings) + " mappings");
    if (const int status = ranks_.await_end(rank); status != 0)
      fail(rank, "must end with status 0, got " + std::to_string(status));
  }
}

void Campaign::survive(const Strike& strike) {
  healthy_step(kEverybody);
  if (strike.fault == Fault::kKillInRecover) {
    survive_lost_recover(strike);
  } else {
    start_step(kEverybody, &strike);
    if (is_mismatch(strike.fault)) {
      survive_mismatch(strike);
    } else if (loses_rank(strike.fault)) {
      survive_loss(strike);
    } else {
      for (int rank = 0; rank < kNumRanks; ++rank)
        expect(rank, Outcome::kDone);
    }
  }
  healthy_step(kEverybody);
  expect_nothing_leaked();
}

void Campaign::survive_mismatch(const Strike&) {
  for (int rank = 0; rank < kNumRanks; ++rank)
    expect(rank, Outcome::kMismatch);
  regroup(kEverybody, Verb::kRecover);
}

void Campaign::survive_lost_recover(const Strike& strike) {
  start_regroup(kEverybody, [&](int rank) {
    Command command{.verb = Verb::kRecover};
    if (rank == strike.victim) {
      command.fault = strike.fault;
      command.fault_seed = static_cast<std::uint32_t>(strike.seed);
    }
    return command;
  });
  expect_end(strike);
  for (int rank = 0; rank < kNumRanks; ++rank) {
    if (rank == strike.victim) continue;
    // Who has heard all of the last exchange does not miss it.
    const Reply reply = ranks_.hear(rank);
    if (reply.outcome != Outcome::kError && reply.outcome != Outcome::kTimeout &&
        reply.outcome != Outcome::kDone)
      fail(rank, "must report the lost group, got " + text_of(reply));
  }
  go_on_without(strike);
}

void Campaign::survive_loss(const Strike& strike) {
  expect_loss_noticed(strike);
  go_on_without(strike);
}

void Campaign::go_on_without(const Strike& strike) {
  const std::uint64_t survivors = kEverybody & ~bit(strike.victim);
  regroup(survivors, Verb::kRecover);
  // It goes on with its step while the others do theirs.
  if (stops_process(strike.fault)) ranks_.signal(strike.victim, SIGCONT);
  healthy_step(survivors);
  healthy_step(survivors);
  take_back(strike);
}

// The victim's process ended, was stopped or threw as it was meant to.
void Campaign::expect_end(const Strike& strike) {
  const int victim = strike.victim;
  if (stops_process(strike.fault)) {
    const int status = ranks_.await_stop(victim);
    if (!WIFSTOPPED(status)) fail(victim, "must be stopped, got status " + std::to_string(status));
  } else if (ends_process(strike.fault)) {
    const bool exits =
        strike.fault == Fault::kExitBetween || strike.fault == Fault::kExitInDispatch;
    const int status = ranks_.await_end(victim);
    if (exits ? status != 0 : !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
      fail(victim, "must end as told, got status " + std::to_string(status));
  } else {
    expect(victim, Outcome::kThrown);
  }
}

void Campaign::expect_loss_noticed(const Strike& strike) {
  const int victim = strike.victim;
  expect_end(strike);
  bool exact = strikes_between_phases(strike.fault);
  bool noticed = false;
  for (int attempt = 0; !noticed; ++attempt) {
    // It struck after the peers had all they needed of this step: they miss it in the next one.
    if (attempt > 0) {
      start_step(kEverybody & ~bit(victim), nullptr);
      exact = true;
    }
    for (int rank = 0; rank < kNumRanks; ++rank) {
      if (rank == victim) continue;
      const Reply reply = ranks_.hear(rank);
      if (reply.outcome == Outcome::kDone && !exact) continue;
      noticed = true;
      if (reply.outcome != Outcome::kTimeout || (reply.named & bit(victim)) == 0 ||
          (exact && reply.named != bit(victim)) || reply.call_ms > kNoticedWithinMs)
        fail(rank, "must miss rank " + std::to_string(victim) + " in time, got " + text_of(reply));
    }
  }
}

void Campaign::take_back(const Strike& strike) {
  const int victim = strike.victim;
  const bool anew = strike.seed % 2 == 0;
  if (ends_process(strike.fault)) {
    ranks_.start(victim);
    rejoin(victim, strike.seed % 4 == 0);
    return;
  }
  if (stops_process(strike.fault)) {
    ranks_.hear(victim);  // whatever it made of a step whose peers have gone on
    if (anew) {
      ranks_.signal(victim, SIGKILL);
      ranks_.await_end(victim);
      ranks_.start(victim);
    }
  }
  if (anew) {
    rejoin(victim, false);
  } else {
    regroup(kEverybody, Verb::kRecover);
  }
}

void Campaign::rejoin(int rank, bool wrong_params_first) {
  if (wrong_params_first) regroup(kEverybody, Verb::kRecover, rank, true);
  regroup(kEverybody, Verb::kRecover, rank);
}

}  // namespace moe_ep::testing::chaos
