// The behaviour suite over the CUDA backend on the emulated machine.
#include "conformance/backend_suite.hpp"
#include "cuda_suite_backend.hpp"

namespace moe_ep::testing {
namespace {

// With a multiprocessor for every rank of the largest group.
class MachineForRanks final : public ::testing::Environment {
 public:
  void SetUp() override {
    emulator::Config config = emulator::Machine::get().config();
    config.num_devices = 4;
    config.num_sms = 4;
    config.host_threads = true;
    emulator::configure(config);
  }
};
const auto* const kMachine = ::testing::AddGlobalTestEnvironment(new MachineForRanks);

INSTANTIATE_TEST_SUITE_P(Cuda, BackendSuite,
                         ::testing::Values<const SuiteBackend*>(&kCudaFence, &kCudaLamport),
                         suite_name);

}  // namespace
}  // namespace moe_ep::testing
