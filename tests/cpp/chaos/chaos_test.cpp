// Ranks that die, stop, throw, exit, come late or disagree, in random order, on every transport of
// the host backend (SPEC.md 6 and 7; FIELD.md, TIME and LIFE).
//
// MOE_EP_CHAOS_FAULTS faults in all (24), in an order of MOE_EP_CHAOS_SEED's (1). Not for
// ThreadSanitizer, which does not like forks.
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>

#include "chaos/campaign.hpp"
#include "support/resources.hpp"

namespace moe_ep::testing::chaos {
namespace {

constexpr int kNumTransports = 3;

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::vector<std::string> shared_memory_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("moe_ep")) names.push_back(name);
  }
  return names;
}

class ChaosTest : public ::testing::TestWithParam<Transport> {};

TEST_P(ChaosTest, SurvivorsGoOnAndTakeTheLostRankBack) {
  const std::uint64_t seed = number_from("MOE_EP_CHAOS_SEED", 1);
  const auto total = static_cast<int>(number_from("MOE_EP_CHAOS_FAULTS", 24));
  const int share = (total + kNumTransports - 1) / kNumTransports;
  const TempDir directory;
  const ScopedEnv rendezvous("MOE_EP_RENDEZVOUS_DIR", directory.path().c_str());
  const Resources before = Resources::now();
  const auto names_before = shared_memory_names();
  {
    const HostSuiteBackend backend("chaos", RankKind::kProcesses, GetParam());
    Campaign campaign(backend, directory.path(), seed);
    std::printf("chaos: MOE_EP_CHAOS_SEED=%llu\n", static_cast<unsigned long long>(seed));
    campaign.run(static_cast<int>(GetParam()) * share, share);
    std::printf("chaos: survived %d faults on %s: %s\n", share, transport_name(GetParam()),
                campaign.summary().c_str());
  }
  EXPECT_EQ(Resources::now(), before);
  EXPECT_THAT(directory.entries(), ::testing::IsEmpty());
  EXPECT_EQ(shared_memory_names(), names_before);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);  // nobody is left
  EXPECT_EQ(errno, ECHILD);
}

INSTANTIATE_TEST_SUITE_P(Transports, ChaosTest,
                         ::testing::Values(Transport::kFence, Transport::kLamport,
                                           Transport::kCounted),
                         [](const auto& test) { return std::string(transport_name(test.param)); });

}  // namespace
}  // namespace moe_ep::testing::chaos
