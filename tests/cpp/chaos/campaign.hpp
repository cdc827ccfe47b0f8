// A seeded sequence of faults against one group: after each the survivors get the right error, go
// on without the lost rank, take it in again, and hold no more than before.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "chaos/supervisor.hpp"

namespace moe_ep::testing::chaos {

class Campaign {
 public:
  // @param directory for the sockets of the groups
  Campaign(const HostSuiteBackend& backend, std::string directory, std::uint64_t seed);

  // Runs `num_faults` faults; the first is number `first` of the endless sequence of kinds.
  // @throws std::runtime_error at the first thing that must not be
  void run(int first, int num_faults);
  // "kill in dispatch 2, ..."
  std::string summary() const;

 private:
  struct Strike {
    Fault fault;
    int victim;
    std::uint64_t seed;
  };

  void create();
  void destroy();
  void survive(const Strike& strike);
  void survive_mismatch(const Strike& strike);
  void survive_lost_recover(const Strike& strike);
  void survive_loss(const Strike& strike);
  void go_on_without(const Strike& strike);
  void expect_end(const Strike& strike);
  void expect_loss_noticed(const Strike& strike);
  void take_back(const Strike& strike);
  void rejoin(int rank, bool wrong_params_first);

  // A step of `active` with everything exact.
  void healthy_step(std::uint64_t active);
  void start_step(std::uint64_t active, const Strike* strike);
  // `verb` of every rank of `active` in a new group; all must succeed.
  void regroup(std::uint64_t active, Verb verb, int rejoining = -1, bool wrong_params = false);
  void start_regroup(std::uint64_t active, const std::function<Command(int rank)>& command);
  Reply expect(int rank, Outcome outcome);
  void expect_nothing_leaked();

  Supervisor ranks_;
  const std::string directory_;
  const std::uint64_t seed_;
  std::uint64_t num_steps_ = 0;
  int num_groups_ = 0;
  std::array<Reply, kNumRanks> whole_;  // what each rank holds while all are there
  std::map<Fault, int> survived_;
};

}  // namespace moe_ep::testing::chaos
