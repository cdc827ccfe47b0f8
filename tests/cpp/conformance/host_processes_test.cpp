// The behaviour suite over the host backend with ranks as forked processes. ThreadSanitizer sees
// nothing across processes and does not like forks: its builds leave this file empty.
#include "conformance/backend_suite.hpp"
#include "support/host_suite_backend.hpp"

#if !defined(__SANITIZE_THREAD__)

namespace moe_ep::testing {
namespace {

const HostSuiteBackend kFence("fence", RankKind::kProcesses, Transport::kFence);
const HostSuiteBackend kLamport("lamport", RankKind::kProcesses, Transport::kLamport);
const HostSuiteBackend kCounted("counted", RankKind::kProcesses, Transport::kCounted);

INSTANTIATE_TEST_SUITE_P(Processes, BackendSuite,
                         ::testing::Values<const SuiteBackend*>(&kFence, &kLamport, &kCounted), suite_name);

}  // namespace
}  // namespace moe_ep::testing

#endif
