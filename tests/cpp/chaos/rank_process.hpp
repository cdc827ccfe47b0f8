// One rank's process: does what the supervisor says and reports what came of it.
#pragma once

#include "chaos/control.hpp"
#include "support/host_suite_backend.hpp"

namespace moe_ep::testing::chaos {

// Runs until the supervisor hangs up or says kDestroy. For a freshly forked child.
void serve_rank(int rank, int control, const HostSuiteBackend& backend);

}  // namespace moe_ep::testing::chaos
