// Bounded waits under a clock that only pauses move.
#include "protocol/wait.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/fake_memory.hpp"

namespace moe_ep::protocol {
namespace {

using testing::FakeMemory;

constexpr std::uint64_t kDeadline = 1'000'000;
constexpr auto kNever = [] { return false; };

RankMask mask_of(const std::vector<int>& ranks) {
  RankMask mask;
  for (const int rank : ranks)
    mask.set(rank);
  return mask;
}

TEST(WaitTest, WhatHasArrivedCostsNeitherPauseNorClock) {
  FakeMemory memory;
  EXPECT_TRUE(wait_until(memory, kDeadline, [] { return true; }));
  EXPECT_EQ(memory.num_pauses, 0u);
  EXPECT_EQ(memory.num_clock_reads, 0u);
  // Also when the time was up before the wait began.
  memory.clock_ns = 2 * kDeadline;
  EXPECT_TRUE(wait_until(memory, kDeadline, [] { return true; }));
}

TEST(WaitTest, GivesUpOnceTheDeadlineIsReachedAndNotBefore) {
  for (const std::uint64_t ns_per_pause : {1u, 999u, 1000u, 50'000u, 5'000'000u}) {
    FakeMemory memory;
    memory.ns_per_pause = ns_per_pause;
    EXPECT_FALSE(wait_until(memory, kDeadline, kNever));
    EXPECT_GE(memory.clock_ns, kDeadline) << ns_per_pause;
    EXPECT_LE(memory.clock_ns, kDeadline + 64 * ns_per_pause) << ns_per_pause;
  }
}

TEST(WaitTest, DeadlineInThePastEndsAtOnce) {
  FakeMemory memory;
  memory.clock_ns = kDeadline;
  EXPECT_FALSE(wait_until(memory, kDeadline, kNever));
  EXPECT_LE(memory.num_pauses, 64u);
}

TEST(WaitTest, ArrivalIsSeenAtWhateverPollItCame) {
  for (std::uint64_t pauses = 1; pauses < 200; ++pauses) {
    FakeMemory memory;
    EXPECT_TRUE(wait_until(memory, kDeadline, [&] { return memory.num_pauses >= pauses; }));
    EXPECT_EQ(memory.num_pauses, pauses);
  }
}

// A waiter that was off its core until after the deadline must not call late what had arrived.
TEST(WaitTest, LastLookFollowsTheClock) {
  struct Memory : FakeMemory {
    bool arrived = false;
    std::uint64_t now_ns() {
      arrived = true;  // while the clock was read
      return kDeadline;
    }
  };
  static_assert(protocol::Memory<Memory>);
  Memory memory;
  EXPECT_TRUE(wait_until(memory, kDeadline, [&] { return memory.arrived; }));
}

TEST(WaitTest, PausesCountUpwardsSoThatAWaiterCanYield) {
  FakeMemory memory;
  std::vector<std::uint32_t> polls;
  memory.on_pause = [&](std::uint32_t count) { polls.push_back(count); };
  EXPECT_FALSE(wait_until(memory, kDeadline, kNever));
  ASSERT_FALSE(polls.empty());
  for (std::size_t i = 0; i < polls.size(); ++i)
    ASSERT_EQ(polls[i], i + 1);
}

TEST(WaitTest, ClockIsReadRarely) {
  FakeMemory memory;
  memory.ns_per_pause = 1;
  EXPECT_FALSE(wait_until(memory, kDeadline, kNever));
  EXPECT_LE(memory.num_clock_reads * 16, memory.num_pauses);
}

TEST(WaitTest, AwaitPeersNamesExactlyTheMissing) {
  for (const auto& missing :
       std::vector<std::vector<int>>{{}, {0}, {7}, {0, 1, 2}, {63, 64, 65, 255}}) {
    FakeMemory memory;
    const RankMask absent = mask_of(missing);
    EXPECT_EQ(await_peers(memory, RankMask::first(kMaxRanks), kDeadline,
                          [&](int peer) { return !absent.test(peer); }),
              absent);
  }
}

TEST(WaitTest, AwaitPeersAsksOnlyThePeersItWasGiven) {
  FakeMemory memory;
  const RankMask peers = mask_of({1, 64, 200});
  RankMask asked;
  const RankMask missing = await_peers(memory, peers, kDeadline, [&](int peer) {
    asked.set(peer);
    return peer != 64;
  });
  EXPECT_EQ(asked, peers);
  EXPECT_EQ(missing, mask_of({64}));
}

TEST(WaitTest, AllPeersShareOneDeadline) {
  FakeMemory memory;
  const RankMask everybody = RankMask::first(kMaxRanks);
  EXPECT_EQ(await_peers(memory, everybody, kDeadline, [](int) { return false; }), everybody);
  // One wait to the end, then a few polls for each of the others.
  EXPECT_LE(memory.clock_ns, kDeadline + 64 * kMaxRanks * memory.ns_per_pause);
}

TEST(WaitTest, PeersThatCameWhileAnotherWasAwaitedAreNotMissing) {
  FakeMemory memory;
  const RankMask missing = await_peers(memory, mask_of({0, 1, 2}), kDeadline, [&](int peer) {
    return peer != 0 && memory.clock_ns >= kDeadline / 2;
  });
  EXPECT_EQ(missing, mask_of({0}));
}

TEST(WaitTest, FreshStatusIsOk) {
  const StepStatus status;
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(status.missing.empty());
  for (const StepResult result :
       {StepResult::kTimeout, StepResult::kMismatch, StepResult::kCorrupt}) {
    StepStatus failed;
    failed.result = result;
    EXPECT_FALSE(failed.ok());
  }
}

}  // namespace
}  // namespace moe_ep::protocol
