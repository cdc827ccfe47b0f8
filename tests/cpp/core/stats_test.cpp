// What stats() says after steps of known traffic, after failures and after rounds without an end.
#include <gtest/gtest.h>
#include <moe_ep/host.hpp>

#include <thread>

#include "support/host_suite_backend.hpp"
#include "support/reference.hpp"

namespace moe_ep {
namespace {

using namespace testing;

constexpr int kRanks = 3;
constexpr std::int64_t kHidden = 256;
const MoEEpCommParams kParams = {
    .num_experts = 6, .top_k = 4, .max_tokens_per_rank = 6, .hidden_size = kHidden};

void run(const RankBody& body) {
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, kRanks, body)));
}

// A check that also counts on a rank's own thread.
void expect(std::int64_t got, std::int64_t want, const std::string& what) {
  check(got == want, what + " must be " + std::to_string(want) + ", got " + std::to_string(got));
}

void expect_phase(const PhaseStats& got, const PhaseStats& want, const std::string& phase) {
#define MOE_EP_EXPECT(name) expect(got.name, want.name, phase + "." #name);
  MOE_EP_FOR_EACH_PHASE_COUNTER(MOE_EP_EXPECT)
#undef MOE_EP_EXPECT
}

// Adds the traffic of `step` on `rank` as the contract has it.
void add_step(const GroupStep& step, int rank, std::int64_t dispatch_bytes,
              std::int64_t combine_bytes, PhaseStats& dispatch, PhaseStats& combine) {
  std::int64_t sent = 0;
  std::int64_t received = 0;
  for (int peer = 0; peer < step.num_ranks; ++peer) {
    if (peer == rank) continue;
    sent += static_cast<std::int64_t>(reference::arrivals(step, rank, peer).size());
    received += static_cast<std::int64_t>(reference::arrivals(step, peer, rank).size());
  }
  const std::int64_t tokens = step.num_tokens[static_cast<std::size_t>(rank)];
  const auto add = [&](PhaseStats& phase, std::int64_t out, std::int64_t in, std::int64_t bytes) {
    phase.steps += 1;
    phase.tokens += tokens;
    phase.rows_sent += out;
    phase.rows_received += in;
    phase.bytes_sent += out * bytes;
    phase.bytes_received += in * bytes;
  };
  add(dispatch, sent, received, dispatch_bytes);
  add(combine, received, sent, combine_bytes);
}

std::unique_ptr<HostAlltoAll> make(int rank, const std::shared_ptr<CommBackend>& comm,
                                   HostAlltoAllConfig config = {}) {
  config.comm_backend = comm;
  return std::make_unique<HostAlltoAll>(BootstrapConfig{.world_size = kRanks, .rank = rank},
                                        kParams, config);
}

class StatsTest : public ::testing::TestWithParam<Transport> {};

TEST_P(StatsTest, TrafficIsThatOfTheSteps) {
  const Transport transport = GetParam();
  const HostSuiteBackend backend("host", RankKind::kThreads, transport);
  const bool low_precision = transport == Transport::kFence;  // others cannot, or need no case
  run([&](int rank, const auto& world) {
    HostAlltoAllConfig config;
    config.use_low_precision_combine = low_precision;
    const auto comm = make(rank, world, backend.configure(config));
    // bf16 rows, four int32 ids, four float32 weights; FP8 codes and a scale per 128 elements.
    const std::int64_t dispatch_bytes = 2 * kHidden + 4 * 4 + 4 * 4;
    const std::int64_t combine_bytes = low_precision ? kHidden + 2 * 4 : 2 * kHidden;
    PhaseStats dispatch;
    PhaseStats combine;
    StepOptions options;
    options.low_precision = low_precision;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      const GroupStep step = random_step(seed, kRanks, 6, 4, kHidden, 6);
      run_step(backend, *comm, step, options);
      add_step(step, rank, dispatch_bytes, combine_bytes, dispatch, combine);
    }
    const CommunicationStats stats = comm->stats();
    expect_phase(stats.dispatch, dispatch, "dispatch");
    expect_phase(stats.combine, combine, "combine");
    check(dispatch.rows_sent > 0 && dispatch.rows_received > 0, "the steps must send something");
    std::int64_t all = 0;
    for (const std::int64_t steps : stats.steps_by_transport)
      all += steps;
    expect(all, 8, "steps of all transports");
    expect(stats.steps_by_transport[static_cast<std::size_t>(transport)], 8,
           "steps of the transport taken");
    expect(stats.timeouts + stats.mismatches + stats.corrupt_counts + stats.recoveries +
               stats.abandoned_rounds,
           0, "events");
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, StatsTest,
                         ::testing::Values(Transport::kFence, Transport::kLamport,
                                           Transport::kCounted),
                         [](const auto& param) { return transport_name(param.param); });

const HostSuiteBackend kBackend("host", RankKind::kThreads);

TEST(StatsEventsTest, TimeoutsRecoveriesAndRoundsWithoutTheirCombine) {
  const GroupStep step = random_step(1, kRanks, 6, 4, kHidden, 6);
  run([&](int rank, const auto& world) {
    HostAlltoAllConfig config;
    config.timeout_sec = 1;
    const auto comm = make(rank, world, config);
    StepRunner runner(kBackend, *comm, step);
    runner.dispatch();
    world->barrier();
    if (rank != 0) {  // rank 0 never combines
      try {
        runner.combine();
        check(false, "combine must time out");
      } catch (const MoEEpTimeoutError&) {
      }
    }
    expect(comm->stats().timeouts, rank == 0 ? 0 : 1, "timeouts");
    expect(comm->stats().abandoned_rounds, rank == 0 ? 0 : 1, "abandoned before recover()");
    comm->recover({0, 1, 2}, world);
    expect(comm->stats().abandoned_rounds, 1, "abandoned");
    expect(comm->stats().recoveries, 1, "recoveries");
    run_step(kBackend, *comm, step);
    StepRunner last(kBackend, *comm, step);
    last.dispatch();
    world->barrier();
    comm->destroy();
    const CommunicationStats stats = comm->stats();
    expect(stats.abandoned_rounds, 2, "abandoned after destroy()");
    expect(stats.dispatch.steps, stats.combine.steps + 2, "dispatches");
  });
}

TEST(StatsEventsTest, MismatchesCount) {
  run([&](int rank, const auto& world) {
    const auto comm = make(rank, world);
    GroupStep step = random_step(1, kRanks, 6, 4, kHidden, 6);
    StepOptions options;
    options.weights = rank != 1;
    try {
      StepRunner(kBackend, *comm, step, options).send();
      check(false, "dispatch must not succeed");
    } catch (const MoEEpMismatchError&) {
    }
    expect(comm->stats().mismatches, 1, "mismatches");
    expect(comm->stats().dispatch.steps, 0, "dispatches");
    world->barrier();
  });
}

// For ThreadSanitizer.
TEST(StatsEventsTest, MayBeReadDuringSteps) {
  const GroupStep step = random_step(1, kRanks, 6, 4, kHidden, 6);
  run([&](int rank, const auto& world) {
    const auto comm = make(rank, world);
    std::int64_t seen = 0;
    bool went_back = false;
    std::jthread reader([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const std::int64_t steps = comm->stats().dispatch.steps;
        went_back = went_back || steps < seen;
        seen = steps;
        std::this_thread::yield();
      }
    });
    for (int round = 0; round < 20; ++round)
      run_step(kBackend, *comm, step);
    reader.request_stop();
    reader.join();
    check(!went_back, "counts must not go back");
    expect(comm->stats().dispatch.steps, 20, "dispatches");
  });
}

}  // namespace
}  // namespace moe_ep
