// What a campaign has all ranks do at once.
#include <cstring>

#include "chaos/campaign.hpp"

namespace moe_ep::testing::chaos {

void Campaign::healthy_step(std::uint64_t active) {
  start_step(active, nullptr);
  for (const int rank : ranks_of(active))
    expect(rank, Outcome::kDone);
}

void Campaign::start_step(std::uint64_t active, const Strike* strike) {
  Command command{.verb = Verb::kStep, .active = kEverybody};
  command.seed = mix(seed_, 51, num_steps_++);
  command.active = active;
  for (const int rank : ranks_of(active)) {
    Command own = command;
    if (strike != nullptr && strike->victim == rank) {
      own.fault = strike->fault;
      own.fault_seed = static_cast<std::uint32_t>(strike->seed);
    }
    ranks_.say(rank, own);
  }
}

void Campaign::regroup(std::uint64_t active, Verb verb, int rejoining, bool wrong_params) {
  start_regroup(active, [&](int rank) {
    Command command{.verb = rank == rejoining ? Verb::kRejoin : verb};
    command.wrong_params = rank == rejoining && wrong_params;
    return command;
  });
  for (const int rank : ranks_of(active))
    expect(rank, wrong_params ? Outcome::kBadArgument : Outcome::kDone);
}

void Campaign::start_regroup(std::uint64_t active, const std::function<Command(int)>& command) {
  const std::string path = directory_ + "/group" + std::to_string(num_groups_++);
  for (const int rank : ranks_of(active)) {
    Command own = command(rank);
    own.active = active;
    std::strncpy(own.group, path.c_str(), sizeof own.group - 1);
    ranks_.say(rank, own);
  }
}

Reply Campaign::expect(int rank, Outcome outcome) {
  const Reply reply = ranks_.hear(rank);
  if (reply.outcome != outcome)
    fail(rank,
         "must report " + std::to_string(static_cast<int>(outcome)) + ", got " + text_of(reply));
  return reply;
}

void Campaign::expect_nothing_leaked() {
  start_step(kEverybody, nullptr);
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const Reply reply = expect(rank, Outcome::kDone);
    const Reply& usual = whole_[static_cast<std::size_t>(rank)];
    if (reply.num_fds == usual.num_fds && reply.num_mappings == usual.num_mappings) continue;
    fail(rank, "must hold " + std::to_string(usual.num_fds) + " descriptors and " +
                   std::to_string(usual.num_mappings) + " mappings, got " +
                   std::to_string(reply.num_fds) + " and " + std::to_string(reply.num_mappings));
  }
}

}  // namespace moe_ep::testing::chaos
