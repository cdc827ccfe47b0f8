// Making symmetric GPU memory: which handles, and what a driver that refuses leaves.
#include <atomic>
#include <set>

#include "ranks.hpp"

namespace moe_ep::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Values;

TEST_F(DriverTest, FabricHandlesAreUsedWhereEveryRankHasThem) {
  follow({.fabric = Fabric::kWorks});
  on_ranks([](int rank, CommBackend& comm) {
    const Workspace workspace = make(comm, rank);
    comm.barrier();
    EXPECT_EQ(Held::now().fabric_slices, kRanks);
    EXPECT_EQ(workspace->ranks_on_device(), rank == 1 ? 1 : 2);
    expect_shared(*workspace, comm);
  });
}

class OneRankWithoutFabricTest : public DriverTest,
                                 public ::testing::WithParamInterface<std::tuple<Fabric, int>> {};

TEST_P(OneRankWithoutFabricTest, EveryRankUsesDescriptors) {
  const auto [answer, without] = GetParam();
  follow({.fabric = Fabric::kWorks, .fabric_of = {{without, answer}}});
  on_ranks([](int rank, CommBackend& comm) {
    const Workspace workspace = make(comm, rank);
    comm.barrier();
    EXPECT_EQ(Held::now().slices, kRanks);
    EXPECT_EQ(Held::now().fabric_slices, 0);
    expect_shared(*workspace, comm);
  });
}

INSTANTIATE_TEST_SUITE_P(All, OneRankWithoutFabricTest,
                         ::testing::Combine(Values(Fabric::kNoAttribute, Fabric::kNotPermitted,
                                                   Fabric::kNoExport),
                                            Values(0, kRanks - 1)),
                         name_of);

class RefusedCallTest : public DriverTest,
                        public ::testing::WithParamInterface<std::tuple<Fabric, int>> {};

TEST_P(RefusedCallTest, EndsTheConstructionEverywhereAndLeavesNothing) {
  const auto [fabric, failing_rank] = GetParam();
  const Everything before;
  std::set<std::string> survived;
  int num_failures = 0;
  for (int call = 1;; ++call) {
    follow({.fabric = fabric, .failing_rank = failing_rank, .failing_call = call});
    std::vector<std::string> errors(kRanks);
    on_ranks([&](int rank, CommBackend& comm) {
      errors[static_cast<std::size_t>(rank)] =
          error_of([&] { expect_shared(*make(comm, rank), comm); });
    });
    const std::string name = refused_call();
    SCOPED_TRACE("call " + std::to_string(call) + ": " + name);
    EXPECT_EQ(Everything(), before);
    if (errors == std::vector<std::string>(kRanks)) {
      if (name.empty()) break;
      survived.insert(name);
    } else {
      ++num_failures;
      expect_error(errors, failing_rank, name);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(num_failures, 15);
  // Whoever cannot make fabric handles has none; the current device need not be the caller's.
  std::set<std::string> may_survive{"cuDeviceGetAttribute", "cudaSetDevice"};
  if (fabric == Fabric::kWorks) {
    may_survive.insert(
        {"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle"});
  }
  EXPECT_EQ(survived, may_survive);
}

INSTANTIATE_TEST_SUITE_P(All, RefusedCallTest,
                         ::testing::Combine(Values(Fabric::kWorks, Fabric::kNoAttribute),
                                            Values(0, 1)),
                         name_of);

TEST_F(DriverTest, FiftyRoundsLeaveNothing) {
  const Everything before;
  int num_failures = 0;
  for (int round = 0; round < 50; ++round) {
    follow({.fabric = round % 2 == 0 ? Fabric::kWorks : Fabric::kNoAttribute,
            .failing_rank = round % kRanks,
            .failing_call = round % 3 == 2 ? round : 0});
    std::atomic<int> num_failed = 0;
    on_ranks([&](int rank, CommBackend& comm) {
      const std::string error = error_of([&] { expect_shared(*make(comm, rank), comm); });
      num_failed += !error.empty();
    });
    EXPECT_THAT(num_failed.load(), AnyOf(0, kRanks));
    num_failures += num_failed == kRanks;
    ASSERT_EQ(Everything(), before) << "round " << round;
  }
  EXPECT_GE(num_failures, 5);
}

TEST_F(DriverTest, ADriverWithoutAFunctionIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not looked yet
  const auto try_it = [] {
    hide_entry_point("cuMemMap");
    LocalGroup group(1);
    std::fputs(error_of([&] { make(*group.backend(0), 0); }).c_str(), stderr);
    std::_Exit(3);
  };
  EXPECT_EXIT(try_it(), ::testing::ExitedWithCode(3),
              "device memory: .*rank 0: CUDA driver: the driver has no cuMemMap");
}

}  // namespace
}  // namespace moe_ep::testing
