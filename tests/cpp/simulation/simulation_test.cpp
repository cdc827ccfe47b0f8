// The protocol under a memory model with store buffers and stale loads: right in every interleaving
// tried, and every planted fault found.
#include "simulation/seeds.hpp"

namespace moe_ep::testing::simulation {
namespace {

const std::vector<Transport> kEvery{Transport::kFence, Transport::kLamport, Transport::kCounted};

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
  expect_found<Plant::kNone, HostScheme<SingleSet>>(kLamportSteps);
}
TEST(PlantTest, CombineThatDoesNotAwaitEveryPeerIsFoundBeforeFenceSteps) {
  expect_found<Plant::kNone, HostScheme<TwoSetsNotAwaited>>(
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
    const Finding single = find_in<Plant::kNone, HostScheme<SingleSetAwaited>>(seed, kLamportSteps);
    ASSERT_FALSE(single.has_value()) << "seed " << seed << ": " << *single;
    const Finding two = find_in<Plant::kNone, HostScheme<TwoSetsNotAwaited>>(seed, kLamportSteps);
    ASSERT_FALSE(two.has_value()) << "seed " << seed << ": " << *two;
  }
}

}  // namespace
}  // namespace moe_ep::testing::simulation
