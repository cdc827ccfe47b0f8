// Checkpoints and replaced members of symmetric GPU memory, with a driver that refuses.
#include "ranks.hpp"

namespace moe_ep::testing {
namespace {

// Refuses one call of rank 1 from here on; collective.
void fail_from_here(CommBackend& comm, Fabric fabric, int call) {
  comm.barrier();
  if (comm.get_rank() == 0) follow({.fabric = fabric, .failing_rank = 1, .failing_call = call});
  comm.barrier();
}

class CheckpointTest : public DriverTest, public ::testing::WithParamInterface<Fabric> {};

TEST_P(CheckpointTest, FreesMemoryAndKeepsAddresses) {
  follow({.fabric = GetParam()});
  on_ranks([](int rank, CommBackend& comm) {
    const Workspace workspace = make(comm, rank);
    std::byte* const base = workspace->base();
    for (int round = 0; round < 3; ++round) {
      expect_shared(*workspace, comm);
      workspace->checkpoint_prepare(comm);
      EXPECT_FALSE(workspace->mapped());
      EXPECT_EQ(Held::now(), Held{.ranges = kRanks});
      comm.barrier();
      workspace->checkpoint_restore(comm);
      EXPECT_EQ(workspace->base(), base);
    }
    expect_shared(*workspace, comm);
  });
  EXPECT_EQ(Held::now(), Held{});
}

// A prepare that fails changes nothing, a restore that fails holds nothing; both can be repeated.
TEST_P(CheckpointTest, AFailedOneCanBeRepeated) {
  const Everything before;
  bool is_refused_once = true;
  int num_failures = 0;
  for (int call = 1; is_refused_once; ++call) {
    follow({.fabric = GetParam()});
    std::vector<std::string> errors(kRanks);
    on_ranks([&](int rank, CommBackend& comm) {
      const Workspace workspace = make(comm, rank);
      std::byte* const base = workspace->base();
      fail_from_here(comm, GetParam(), call);
      std::string& error = errors[static_cast<std::size_t>(rank)];
      error = error_of([&] { workspace->checkpoint_prepare(comm); });
      EXPECT_EQ(workspace->mapped(), !error.empty());
      if (error.empty()) error = error_of([&] { workspace->checkpoint_restore(comm); });
      comm.barrier();
      const bool is_whole = workspace->mapped();
      if (!is_whole) {
        EXPECT_EQ(Held::now(), Held{.ranges = kRanks});
      }
      const std::string name = refused_call();
      fail_from_here(comm, GetParam(), 0);
      if (rank == 0) {
        SCOPED_TRACE("call " + std::to_string(call) + ": " + name);
        is_refused_once = !name.empty();
        if (!errors[0].empty()) {
          ++num_failures;
          expect_error(errors, 1, name);
        }
      }
      if (is_whole && !error.empty()) workspace->checkpoint_prepare(comm);
      workspace->checkpoint_restore(comm);
      EXPECT_EQ(workspace->base(), base);
      expect_shared(*workspace, comm);
    });
    ASSERT_EQ(Everything(), before) << "call " << call;
    if (HasFailure()) return;
  }
  EXPECT_GT(num_failures, 15);
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointTest,
                         ::testing::Values(Fabric::kWorks, Fabric::kNoAttribute),
                         ::testing::PrintToStringParamName());

// The workspace of a rank that comes anew, made alone.
Workspace make_alone(CommBackend& alone, int rank) {
  return SymmetricWorkspace::create_cuda(alone, kBytes, rank % 2, kRanks, {rank}, true);
}

constexpr int kNewcomer = 2;

void go_on_without(SymmetricWorkspace& workspace, CommBackend& part) {
  workspace.remap(part, {0, 1});
}

// The others go on without rank 2, by `go_on`, then with a new one.
void replace(
    int rank, CommBackend& comm,
    const std::function<void(SymmetricWorkspace&, CommBackend&)>& go_on,
    const std::function<void()>& before_newcomer = [] {}) {
  Workspace workspace = make(comm, rank);
  std::byte* const base = workspace->base();
  expect_shared(*workspace, comm);
  const auto part = comm.split(rank == kNewcomer ? 1 : 0, rank);
  if (rank == kNewcomer) {
    workspace.reset();
    before_newcomer();
    workspace = make_alone(*part, rank);
  } else {
    workspace->slice(rank)[kBytes / 2] = std::byte(7 + rank);
    go_on(*workspace, *part);
    EXPECT_EQ(workspace->slice(1 - rank)[kBytes / 2], std::byte(7 + 1 - rank));
    EXPECT_EQ(access_at(workspace->slice(kNewcomer)), "---p");
  }
  comm.barrier();
  workspace->remap(comm, ranks_below(kRanks));
  for (int peer = 0; peer < kRanks; ++peer) {
    const int mark = peer == kNewcomer ? 0 : 7 + peer;
    EXPECT_EQ(workspace->slice(peer)[kBytes / 2], std::byte(mark));
  }
  if (rank != kNewcomer) {
    EXPECT_EQ(workspace->base(), base);
  }
  comm.barrier();
  std::memset(workspace->slice(rank), 0, kBytes);
  comm.barrier();
  expect_shared(*workspace, comm);
}

class RemapTest : public DriverTest, public ::testing::WithParamInterface<Fabric> {};

TEST_P(RemapTest, AFailedOneCanBeRepeatedAndOwnMemoryStays) {
  const Everything before;
  bool is_refused_once = true;
  int num_failures = 0;
  for (int call = 1; is_refused_once; ++call) {
    follow({.fabric = GetParam()});
    on_ranks([&](int rank, CommBackend& comm) {
      replace(rank, comm, [&](SymmetricWorkspace& workspace, CommBackend& part) {
        fail_from_here(part, GetParam(), call);
        const std::string error = error_of([&] { go_on_without(workspace, part); });
        part.barrier();
        const std::string name = refused_call();
        fail_from_here(part, GetParam(), 0);
        if (rank == 0) {
          SCOPED_TRACE("call " + std::to_string(call) + ": " + name);
          is_refused_once = !name.empty();
          num_failures += !error.empty();
          if (!error.empty()) expect_error({error}, 1, name);
        }
        if (!error.empty()) go_on_without(workspace, part);
      });
    });
    ASSERT_EQ(Everything(), before) << "call " << call;
    if (HasFailure()) return;
  }
  EXPECT_GT(num_failures, 10);
}

INSTANTIATE_TEST_SUITE_P(All, RemapTest, ::testing::Values(Fabric::kWorks, Fabric::kNoAttribute),
                         ::testing::PrintToStringParamName());

class NewcomerTest : public DriverTest, public ::testing::WithParamInterface<Fabric> {};

// What the newcomer can, and its predecessor could not, or the other way round.
TEST_P(NewcomerTest, MayHaveOtherHandlesThanTheOneBefore) {
  const Everything before;
  const Fabric first = GetParam() == Fabric::kWorks ? Fabric::kNotPermitted : Fabric::kWorks;
  follow({.fabric = Fabric::kWorks, .fabric_of = {{kNewcomer, first}}});
  on_ranks([&](int rank, CommBackend& comm) {
    replace(rank, comm, go_on_without,
            [&] { follow({.fabric = Fabric::kWorks, .fabric_of = {{kNewcomer, GetParam()}}}); });
  });
  EXPECT_EQ(Everything(), before);
}

INSTANTIATE_TEST_SUITE_P(All, NewcomerTest,
                         ::testing::Values(Fabric::kWorks, Fabric::kNotPermitted),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace moe_ep::testing
