// Words of a live workspace that are not what the protocol put there: steps end in an error or a
// result, no access leaves the workspace, and recover() makes all well. Made for AddressSanitizer;
// the races are the point, so that ThreadSanitizer's builds leave this file empty.
#include <gmock/gmock.h>
#include <moe_ep/plan.hpp>

#include "support/host_suite_backend.hpp"
#include "trust/mutator.hpp"

#if !defined(__SANITIZE_THREAD__)

namespace moe_ep::testing {
namespace {

constexpr int kNumRanks = 3;
constexpr std::int64_t kMaxTokens = 5;
const MoEEpCommParams kParams = {
    .num_experts = 6, .top_k = 4, .max_tokens_per_rank = kMaxTokens, .hidden_size = 32};

GroupStep step_of(std::uint64_t seed) {
  return random_step(seed, kNumRanks, 6, 4, 32, 1 + static_cast<std::int64_t>(seed % kMaxTokens));
}

bool only_delays(const std::string& region, std::int64_t offset) {
  if (region == "lines") return offset % 128 == 0 || offset % 128 == 8;  // flags
  if (region.starts_with("lamport")) return offset % 8 >= 4 || !region.ends_with("s");
  return region == "header" || region == "counters" || region == "accounts";
}

// One in how many hits on the word is let through. A step that finds rubbish in a flag, a tag's
// epoch or a counter only waits for the time-out; one would do.
std::size_t one_in(const std::string& region, std::int64_t offset, Transport transport) {
  const bool count = region == "recv_counts" || region == "send_counts";
  if (count && transport == Transport::kCounted) return 150;
  return only_delays(region, offset) ? 4000 : 1;
}

// Some words of a slice; every region is as likely.
void corrupt(std::byte* slice, const WorkspacePlan& plan, Transport transport, Mutator& mutator) {
  for (int count = 0; count < 30; ++count) {
    const WorkspaceRegion& region = plan.regions[mutator.below(plan.regions.size())];
    if (region.bytes < 4) continue;
    const auto at =
        static_cast<std::int64_t>(mutator.below(static_cast<std::size_t>(region.bytes / 4)) * 4);
    if (mutator.below(one_in(region.name, at, transport)) != 0) continue;
    const std::uint32_t value = mutator.word();
    std::memcpy(slice + region.offset + at, &value, sizeof value);
  }
}

// False if the step failed or its results are wrong, both of which are to be expected.
template <class Phase>
bool survives(Phase&& phase) {
  try {
    phase();
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

class CorruptionTest : public ::testing::TestWithParam<Transport> {};

TEST_P(CorruptionTest, EndsInAnErrorOrAResultAndRecovers) {
  const HostSuiteBackend backend("threads", RankKind::kThreads, GetParam());
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, kNumRanks, [&](int rank, const auto& world) {
    HostAlltoAllConfig config;
    config.comm_backend = world;
    config.timeout_sec = 1;
    config = backend.configure(config);
    HostAlltoAll comm({.world_size = kNumRanks, .rank = rank}, kParams, config);
    const WorkspacePlan plan = plan_workspace(kNumRanks, kParams, config);
    int num_unharmed = 0;
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
      Mutator mutator(mix(seed, static_cast<std::uint64_t>(GetParam())));
      const GroupStep step = step_of(seed);
      StepRunner runner(backend, comm, step);
      const bool before_dispatch = seed % 4 == 0;
      const bool here = static_cast<int>(mutator.below(kNumRanks)) == rank;
      world->barrier();  // nobody is in the last step any more
      if (before_dispatch && here) corrupt(comm.slice(), plan, GetParam(), mutator);
      world->barrier();
      const bool open = survives([&] { runner.send(); });
      world->barrier();
      if (!before_dispatch && here) corrupt(comm.slice(), plan, GetParam(), mutator);
      world->barrier();
      if (open && survives([&] { runner.combine(); })) ++num_unharmed;
      world->barrier();
      comm.recover({0, 1, 2}, world);
      run_step(backend, comm, step_of(seed + 1));
    }
    EXPECT_GT(num_unharmed, 20);
    EXPECT_LT(num_unharmed, 150);
  })));
}

INSTANTIATE_TEST_SUITE_P(Transports, CorruptionTest,
                         ::testing::Values(Transport::kFence, Transport::kLamport,
                                           Transport::kCounted),
                         [](const auto& test) { return std::string(transport_name(test.param)); });

}  // namespace
}  // namespace moe_ep::testing

#endif
