// The behaviour suite over the host backend with ranks as threads of one process.
#include "conformance/backend_suite.hpp"
#include "support/host_suite_backend.hpp"

namespace moe_ep::testing {
namespace {

const HostSuiteBackend kFence("fence", RankKind::kThreads, Transport::kFence);
const HostSuiteBackend kLamport("lamport", RankKind::kThreads, Transport::kLamport);
const HostSuiteBackend kCounted("counted", RankKind::kThreads, Transport::kCounted);

INSTANTIATE_TEST_SUITE_P(Threads, BackendSuite,
                         ::testing::Values<const SuiteBackend*>(&kFence, &kLamport, &kCounted), suite_name);

}  // namespace
}  // namespace moe_ep::testing
