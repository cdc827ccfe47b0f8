// The protocol under a memory model with store buffers and stale loads: right in every interleaving
// tried, and every planted fault found. MOE_EP_SIM_SEEDS=N tries N seeds a case.
#include <cstdlib>

#include "simulation/sim_run.hpp"

namespace moe_ep::testing::simulation {
namespace {

std::uint64_t num_seeds(std::uint64_t usual) {
  const char* given = std::getenv("MOE_EP_SIM_SEEDS");
  return given == nullptr ? usual : std::strtoull(given, nullptr, 10);
}

const std::vector<Transport> kEvery{Transport::kFence, Transport::kLamport, Transport::kCounted};

template <Plant P = Plant::kNone, class Rules = protocol::LamportRules>
Finding find_in(std::uint64_t seed, const RunOptions& options) {
  return SimRun<P, Rules>(seed, options).run();
}

void expect_right(const RunOptions& options) {
  const std::uint64_t seeds = num_seeds(250);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const Finding finding = find_in(seed, options);
    ASSERT_FALSE(finding.has_value()) << "seed " << seed << ": " << *finding;
  }
}

// How many seeds it takes to find a fault, at most 1,000.
template <Plant P, class Rules = protocol::LamportRules>
void expect_found(const RunOptions& options) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const Finding finding = find_in<P, Rules>(seed, options);
    if (!finding) continue;
    std::printf("found by seed %llu: %s\n", static_cast<unsigned long long>(seed),
                finding->c_str());
    return;
  }
  ADD_FAILURE() << "1,000 seeds found nothing";
}

TEST(SimulationTest, FenceStepsAreRight) {
  expect_right({.transports = {Transport::kFence}});
}
TEST(SimulationTest, LamportStepsAreRight) {
  expect_right({.transports = {Transport::kLamport}});
}
TEST(SimulationTest, CountedStepsAreRight) {
  expect_right({.transports = {Transport::kCounted}});
}
TEST(SimulationTest, StepsOfAllTransportsInTurnAreRight) {
  expect_right({.transports = kEvery, .num_steps = 6});
}
TEST(SimulationTest, MaskedStepsAreRight) {
  expect_right({.transports = kEvery, .masked = true});
}
TEST(SimulationTest, StepsAcrossTheWrapOfTheEpochAreRight) {
  expect_right({.transports = kEvery, .epoch = 0xfffffffe});
}
TEST(SimulationTest, LostRanksAreNamedByAllOthers) {
  expect_right({.transports = kEvery, .num_steps = 2, .lost = true});
}

// Ids of neighbouring steps in one place, and a combine that waits only for rows it expects.
struct SingleSet {
  static constexpr std::int32_t bank(protocol::Epoch) { return 0; }
  static constexpr bool kCombineAwaitsEveryPeer = false;
};
// Either measure alone is enough while all steps are Lamport steps.
struct SingleSetAwaited : SingleSet {
  static constexpr bool kCombineAwaitsEveryPeer = true;
};
struct TwoSetsNotAwaited : protocol::LamportRules {
  static constexpr bool kCombineAwaitsEveryPeer = false;
};

const RunOptions kLamportSteps{.transports = {Transport::kLamport}, .num_steps = 6};

TEST(PlantTest, MissingReleaseEdgeOfTagsIsFound) {
  expect_found<Plant::kRelaxedTags>(kLamportSteps);
}
TEST(PlantTest, EarlyRearmIsFound) {
  expect_found<Plant::kEarlyRearm>(kLamportSteps);
}
TEST(PlantTest, TornVectorIsFound) {
  expect_found<Plant::kTornVector>(kLamportSteps);
}
TEST(PlantTest, SingleSetOfIdsIsFound) {
  expect_found<Plant::kNone, SingleSet>(kLamportSteps);
}
TEST(PlantTest, CombineThatDoesNotAwaitEveryPeerIsFoundBeforeFenceSteps) {
  expect_found<Plant::kNone, TwoSetsNotAwaited>(
      {.transports = {Transport::kLamport, Transport::kFence}, .num_steps = 6});
}
TEST(PlantTest, CountBeforeDataIsFound) {
  expect_found<Plant::kRelaxedCounters>({.transports = {Transport::kCounted}});
}
TEST(PlantTest, FlagBeforeDataIsFound) {
  expect_found<Plant::kRelaxedFlags>({.transports = {Transport::kFence}});
}

TEST(PlantTest, OneSetIsEnoughWhereEveryPeerIsAwaitedAndTwoAreWhereNot) {
  for (std::uint64_t seed = 1; seed <= num_seeds(150); ++seed) {
    const Finding single = find_in<Plant::kNone, SingleSetAwaited>(seed, kLamportSteps);
    ASSERT_FALSE(single.has_value()) << "seed " << seed << ": " << *single;
    const Finding two = find_in<Plant::kNone, TwoSetsNotAwaited>(seed, kLamportSteps);
    ASSERT_FALSE(two.has_value()) << "seed " << seed << ": " << *two;
  }
}

}  // namespace
}  // namespace moe_ep::testing::simulation
