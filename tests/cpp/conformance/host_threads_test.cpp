// The behaviour suite over the host backend with ranks as threads of one process.
#include "conformance/backend_suite.hpp"
#include "support/host_suite_backend.hpp"

namespace moe_ep::testing {
namespace {

const HostSuiteBackend kFence("fence", RankKind::kThreads, Transport::kFence);
const HostSuiteBackend kLamport("lamport", RankKind::kThreads, Transport::kLamport);

INSTANTIATE_TEST_SUITE_P(Threads, BackendSuite,
                         ::testing::Values<const SuiteBackend*>(&kFence, &kLamport), suite_name);

}  // namespace
}  // namespace moe_ep::testing
