// inspect_slice() of slices in use, and of bytes that are none or lie about themselves.
#include <moe_ep/inspect.hpp>

#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include <moe_ep/host.hpp>

#include "protocol/layout.hpp"
#include "support/host_suite_backend.hpp"
#include "support/reference.hpp"

namespace moe_ep {
namespace {

using namespace testing;
using protocol::SliceHeader;

constexpr int kRanks = 3;
const MoEEpCommParams kParams = {
    .num_experts = 6, .top_k = 4, .max_tokens_per_rank = 6, .hidden_size = 64};

SliceInspection look(const MoEEpCommunication& comm) {
  return inspect_slice(comm.slice(), static_cast<std::size_t>(comm.workspace_bytes()));
}

class InspectTest : public ::testing::TestWithParam<Transport> {};

TEST_P(InspectTest, SaysWhatTheStepsWere) {
  const Transport transport = GetParam();
  const HostSuiteBackend backend("host", RankKind::kThreads, transport);
  const GroupStep step = random_step(1, kRanks, 6, 4, 64, 6);
  EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, kRanks, [&](int rank, const auto& world) {
    HostAlltoAllConfig config;
    config.comm_backend = world;
    const HostAlltoAllConfig configured = backend.configure(config);
    HostAlltoAll comm({.world_size = kRanks, .rank = rank}, kParams, configured);
    check(look(comm).epoch == 0 && look(comm).active.empty(), "no step must be told of");
    world->barrier();  // looking races with plain words of a step, which is fine outside of tests
    for (int round = 0; round < 3; ++round)
      run_step(backend, comm, step);
    world->barrier();
    const SliceInspection slice = look(comm);
    check(slice.rank == rank && slice.num_ranks == kRanks && slice.max_tokens == 6, "sizes");
    check(slice.epoch == 3 && slice.active == RankMask::first(kRanks), "step");
    check(slice.has_lamport == comm.lamport_enabled(), "Lamport");
    check(slice.has_counted == (transport == Transport::kCounted), "counted");
    for (const PeerInspection& peer : slice.peers) {
      const auto from = reference::arrivals(step, peer.rank, rank).size();
      const auto to = reference::arrivals(step, rank, peer.rank).size();
      check(peer.rows_received == static_cast<int>(from), "rows received");
      check(peer.rows_sent == static_cast<int>(to), "rows sent");
      if (peer.rank == rank) continue;
      check(peer.dispatch_epoch == 3 && peer.combine_epoch == 3, "epochs");
      if (transport == Transport::kLamport) continue;
      check(peer.transport == transport && peer.announced_rows == peer.rows_received, "line");
      check(peer.dispatch_bytes == peer.expected_dispatch_bytes, "bytes");
      check((peer.dispatch_bytes > 0) == (transport == Transport::kCounted), "some bytes");
    }
    world->barrier();
  })));
}

INSTANTIATE_TEST_SUITE_P(Transports, InspectTest,
                         ::testing::Values(Transport::kFence, Transport::kLamport,
                                           Transport::kCounted),
                         [](const auto& param) { return transport_name(param.param); });

// Every header word, set to values that a broken or hostile owner could leave there.
TEST(InspectedBytesTest, NothingInThemIsTrusted) {
  HostAlltoAllConfig config;
  config.lamport = true;
  HostAlltoAll comm({}, kParams, config);
  const auto bytes = static_cast<std::size_t>(comm.workspace_bytes());
  const std::vector<std::uint64_t> good = [&] {
    std::vector<std::uint64_t> words((bytes + 7) / 8);
    std::memcpy(words.data(), comm.slice(), bytes);
    return words;
  }();
  const auto look_at = [](const std::vector<std::uint64_t>& words, std::size_t size) {
    // Exactly `size` bytes, so that a sanitizer sees what is read behind them.
    std::vector<std::uint64_t> copy(words.begin(),
                                    words.begin() + static_cast<std::ptrdiff_t>(size / 8));
    return inspect_slice(reinterpret_cast<const std::byte*>(copy.data()), copy.size() * 8);
  };
  EXPECT_EQ(look_at(good, bytes).peers.size(), 1u);
  for (const std::size_t size : {0, 8, 120, 128, 256, 320}) {
    EXPECT_THROW(look_at(good, size), std::invalid_argument) << size;
  }
  int refused = 0;
  for (std::size_t word = 0; word < sizeof(SliceHeader) / 8; ++word) {
    for (const std::uint64_t value : {~0ull, 1ull << 63, 0x7fffffffull, 0x7fffffff00000000ull, 4ull,
                                      bytes - 8ull, bytes + 0ull, 0xffffffffull}) {
      std::vector<std::uint64_t> words = good;
      words[word] = value;
      try {
        look_at(words, bytes);
      } catch (const std::invalid_argument&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 20);
  EXPECT_THROW(look_at(std::vector<std::uint64_t>(64), 512), std::invalid_argument);
}

}  // namespace
}  // namespace moe_ep
