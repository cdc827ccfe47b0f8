// Runs of many seeds: all right, or a planted fault found. MOE_EP_SIM_SEEDS=N tries N seeds a case.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "simulation/sim_run.hpp"

namespace moe_ep::testing::simulation {

inline std::uint64_t num_seeds(std::uint64_t usual) {
  const char* given = std::getenv("MOE_EP_SIM_SEEDS");
  return given == nullptr ? usual : std::strtoull(given, nullptr, 10);
}

template <Plant P = Plant::kNone, class Scheme = HostScheme<>>
Finding find_in(std::uint64_t seed, const RunOptions& options) {
  return SimRun<P, Scheme>(seed, options).run();
}

template <Plant P = Plant::kNone, class Scheme = HostScheme<>>
void expect_right(const RunOptions& options, std::uint64_t usual = 250) {
  const std::uint64_t seeds = num_seeds(usual);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const Finding finding = find_in<P, Scheme>(seed, options);
    ASSERT_FALSE(finding.has_value()) << "seed " << seed << ": " << *finding;
  }
}

// How many seeds it takes to find a fault, at most 1,000.
template <Plant P, class Scheme = HostScheme<>>
void expect_found(const RunOptions& options) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const Finding finding = find_in<P, Scheme>(seed, options);
    if (!finding) continue;
    std::printf("found by seed %llu: %s\n", static_cast<unsigned long long>(seed),
                finding->c_str());
    return;
  }
  ADD_FAILURE() << "1,000 seeds found nothing";
}

}  // namespace moe_ep::testing::simulation
