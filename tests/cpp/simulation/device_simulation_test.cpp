// Lamport steps as devices order them, under the model: right in every interleaving tried, and
// every planted fault found.
#include "simulation/device_scheme.hpp"
#include "simulation/seeds.hpp"

namespace moe_ep::testing::simulation {
namespace {

const std::vector<Transport> kLamport{Transport::kLamport};
const std::vector<Transport> kMixed{Transport::kLamport, Transport::kLamport, Transport::kFence};

void expect_device_right(const RunOptions& options) {
  expect_right<Plant::kRelaxedTags, DeviceScheme<>>(options, 1000);
}

TEST(DeviceSimulationTest, LamportStepsAreRight) {
  expect_device_right({.transports = kLamport});
}
TEST(DeviceSimulationTest, LamportAndFenceStepsInTurnAreRight) {
  expect_device_right({.transports = kMixed});
}
TEST(DeviceSimulationTest, MaskedStepsAcrossTheWrapOfTheEpochAreRight) {
  expect_device_right({.transports = kMixed, .epoch = 0xfffffffe, .masked = true});
}
TEST(DeviceSimulationTest, LostRanksAreNamedByAllOthers) {
  expect_device_right({.transports = kMixed, .num_steps = 2, .lost = true, .timeout = 10'000});
}

template <DeviceFault Fault>
void expect_device_fault_found() {
  expect_found<Plant::kRelaxedTags, DeviceScheme<Fault>>({.transports = kLamport, .num_steps = 6});
}

TEST(DevicePlantTest, EdgeRaisedRelaxedIsFound) {
  expect_device_fault_found<DeviceFault::kEdgeRaisedRelaxed>();
}
TEST(DevicePlantTest, EdgeAwaitedRelaxedIsFound) {
  expect_device_fault_found<DeviceFault::kEdgeAwaitedRelaxed>();
}
TEST(DevicePlantTest, EdgeNotAwaitedIsFound) {
  expect_device_fault_found<DeviceFault::kEdgeNotAwaited>();
}
TEST(DevicePlantTest, OneBankOfCombineRowsIsFound) {
  expect_device_fault_found<DeviceFault::kOneBankOfCombineRows>();
}
TEST(DevicePlantTest, OneBankOfDispatchRowsIsFound) {
  expect_device_fault_found<DeviceFault::kOneBankOfDispatchRows>();
}
TEST(DevicePlantTest, OneBankOfTagsIsFound) {
  expect_device_fault_found<DeviceFault::kOneBankOfTags>();
}

}  // namespace
}  // namespace moe_ep::testing::simulation
