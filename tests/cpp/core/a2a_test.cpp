// The stateless family: steps over a workspace that the caller owns.
#include <moe_ep/a2a.hpp>

#include <gtest/gtest.h>

#include <optional>

#include "support/a2a_world.hpp"

namespace moe_ep {
namespace {

using namespace testing;

TEST(A2aTest, StepsAreExactForEveryRankCount) {
  for (const int num_ranks : {1, 2, 3, 4, 5, 8}) {
    const std::int64_t hidden_bytes = 48;
    const A2aWorld world(num_ranks, 6, hidden_bytes + 4 * 3, 2 * 24);
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const auto tokens_per_rank = 1 + static_cast<std::int64_t>(mix(seed) % 6);
        const GroupStep step = random_step(seed, num_ranks, 2 * num_ranks, 3, 24, tokens_per_rank);
        A2aStep(world, rank, metainfo, step, hidden_bytes).run(seed % 2 == 0);
      }
    });
  }
}

// FR-024, FR-029, FR-030: experts need not divide evenly; there may be fewer than ranks.
TEST(A2aTest, UnevenExpertCountsAreExact) {
  for (const auto& [num_ranks, num_experts] : std::vector<std::pair<int, int>>{
           {4, 10}, {3, 256}, {6, 256}, {3, 7}, {5, 3}, {4, 1}, {2, 1}}) {
    const std::int64_t top_k = num_experts < 8 ? num_experts : 8;
    const A2aWorld world(num_ranks, 9, 16 + 4 * top_k, 2 * 8);
    world.run([&, experts = num_experts, ranks = num_ranks](int rank, const A2aMetainfo& metainfo) {
      for (std::uint64_t seed = 0; seed < 5; ++seed) {
        const GroupStep step = random_step(seed, ranks, experts, top_k, 8, 9);
        A2aStep(world, rank, metainfo, step, 16).run();
      }
    });
  }
}

// FR-059: one to eight payloads, no more.
TEST(A2aTest, OneToEightPayloadsTravel) {
  const A2aWorld world(2, 5, 20 + 8 + 36, 16);
  const GroupStep step = random_step(1, 2, 4, 2, 8, 5);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    for (int extra = 0; extra <= 6; ++extra) {
      A2aStep(world, rank, metainfo, step, 20, extra).run();
    }
    A2aStep alone(world, rank, metainfo, step, 20);
    alone.args.input_payloads.resize(1);
    alone.result = moe_a2a_dispatch(alone.args);
    const A2aCombineArgs combine = alone.combine_args();
    moe_a2a_combine(combine);
    alone.check_combined(combine.output);

    A2aStep over(world, rank, metainfo, step, 20, 7);
    EXPECT_THROW(over.dispatch(), std::invalid_argument);
    over.args.input_payloads.clear();
    EXPECT_THROW(over.dispatch(), std::invalid_argument);
  });
}

TEST(A2aTest, WideRoutingIdsAreNotTruncated) {
  GroupStep step = random_step(2, 2, 4, 2, 8, 4);
  step.num_tokens = {3, 2};
  step.ids = {{(std::int64_t{1} << 32) + 3, 1, -1, 2, 3, std::int64_t{1} << 40}, {0, 3, -5, -6}};
  const A2aWorld world(2, 4, 16 + 8, 16);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    A2aStep(world, rank, metainfo, step, 16, 0, true).run();
  });
}

// FR-012.
TEST(A2aTest, CombineOffsetIsOneNumberForTheWorkspace) {
  const A2aWorld world(2, 12, 64 + 8 + 36, 128);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    for (const std::int64_t tokens_per_rank : {1, 7, 12}) {
      for (const int extra : {0, 3, 6}) {
        const GroupStep step = random_step(3, 2, 4, 2, 64, tokens_per_rank);
        A2aStep runner(world, rank, metainfo, step, extra == 3 ? 5 : 64, extra);
        runner.run();
        check(runner.result.combine_payload_offset == metainfo.combine_offset, "it moved");
      }
    }
  });
}

TEST(A2aTest, OutputMayHaveAnotherTypeThanThePayload) {
  for (const DType in : {kBFloat16, kFloat16, kFloat32}) {
    for (const DType out : {kBFloat16, kFloat16, kFloat32}) {
      GroupStep step = random_step(4, 3, 6, 3, 33, 4, in);
      const A2aWorld world(3, 4, 16 + 12, 33 * 4);
      world.run([&](int rank, const A2aMetainfo& metainfo) {
        A2aStep runner(world, rank, metainfo, step, 16);
        runner.dispatch();
        A2aCombineArgs combine = runner.combine_args();
        const std::int64_t num_tokens = combine.local_num_tokens;
        const Bytes output(static_cast<std::size_t>(num_tokens * 33 * 4));
        combine.output = output.view(out, {num_tokens, 33});
        moe_a2a_combine(combine);
        runner.check_combined(combine.output);
      });
    }
  }
}

TEST(A2aTest, PayloadsInEitherShapeAndWithRowStrides) {
  const GroupStep step = random_step(5, 2, 4, 2, 8, 3);
  const A2aWorld world(2, 3, 16 + 8, 16);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    A2aStep runner(world, rank, metainfo, step, 16);
    for (const bool blocks : {false, true}) {
      runner.dispatch();
      A2aCombineArgs combine = runner.combine_args();
      const Bytes apart(6 * 11 * 2, std::byte{0xff});
      for (int row = 0; row < 6; ++row) {
        std::memcpy(apart.data() + row * 22,
                    static_cast<std::byte*>(combine.payload.data) + row * 16, 16);
      }
      combine.payload = blocks ? apart.view(kBFloat16, {2, 3, 8}) : apart.view(kBFloat16, {6, 8});
      combine.payload.strides = blocks ? std::array<std::int64_t, 4>{33, 11, 1, 0}
                                       : std::array<std::int64_t, 4>{11, 1, 0, 0};
      moe_a2a_combine(combine);
      runner.check_combined(combine.output);
    }
  });
}

TEST(A2aTest, MaskedRanksTakeNoPart) {
  const A2aWorld world(4, 5, 16 + 12, 16);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    if (rank == 2) return;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      GroupStep step = random_step(seed, 4, 8, 3, 8, 5);
      step.active.reset(2);
      A2aStep runner(world, rank, metainfo, step, 16);
      runner.args.enable_rank_mask = true;
      runner.args.active_rank_mask = step.active;
      runner.run();
    }
  });
}

TEST(A2aTest, StatisticsAreGathered) {
  constexpr std::int64_t kExperts = 7;
  const A2aWorld world(3, 4, 16 + 8, 16, kExperts);
  const GroupStep step = random_step(6, 3, 6, 2, 8, 4);
  const auto stats_of = [&](int rank, std::uint64_t round) {
    GroupStep salted = step;
    salted.seed = round;
    return payload_row(salted, 9, rank, 0, 4 * kExperts);
  };
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    for (std::uint64_t round = 0; round < 10; ++round) {
      A2aStep runner(world, rank, metainfo, step, 16);
      const auto own = stats_of(rank, round);
      const Bytes stats(own.size());
      std::memcpy(stats.data(), own.data(), own.size());
      if (round % 3 != 2) runner.args.eplb_local_stats = stats.view(kInt32, {kExperts});
      runner.dispatch();
      check(runner.result.eplb_gathered_stats.has_value() == (round % 3 != 2),
            "statistics that nobody asked for");
      for (int src = 0; round % 3 != 2 && src < 3; ++src) {
        const auto expected = stats_of(src, round);
        check(std::memcmp(static_cast<std::byte*>(runner.result.eplb_gathered_stats->data) +
                              src * 4 * kExperts,
                          expected.data(), expected.size()) == 0,
              "statistics differ");
      }
      moe_a2a_combine(runner.combine_args());
    }
  });
}

// FR-065: 16-bit counters would wrap.
TEST(A2aTest, SeventyThousandSmallRoundsAreExact) {
  GroupStep step = random_step(7, 1, 2, 1, 2, 1);
  step.num_tokens = {1};
  step.ids = {{1}};
  const A2aWorld world(1, 1, 4 + 4, 4);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    A2aStep runner(world, rank, metainfo, step, 4);
    runner.dispatch();
    const A2aCombineArgs combine = runner.combine_args();
    moe_a2a_combine(combine);
    for (int round = 0; round < 70'000; ++round) {
      std::memset(combine.output.data, 0x11, 4);
      moe_a2a_dispatch(runner.args);
      moe_a2a_combine(combine);
      runner.check_combined(combine.output);
    }
  });
}

// The bound of the FP8 wire through this door, too.
TEST(A2aTest, LowPrecisionCombineKeepsItsBound) {
  GroupStep step = random_step(8, 3, 6, 3, 140, 4);
  step.any_bits = false;
  const A2aWorld world(3, 4, 16 + 12, 280);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    for (const bool in_workspace : {false, true}) {
      A2aStep runner(world, rank, metainfo, step, 16);
      runner.dispatch();
      A2aCombineArgs combine = runner.combine_args(in_workspace);
      combine.use_low_precision = true;
      moe_a2a_combine(combine);
      for (std::int64_t token = 0; token < combine.local_num_tokens; ++token) {
        const auto rows = reference::contributions(step, rank, token);
        for (std::size_t element = 0; element < 140; ++element) {
          double exact = 0;
          for (const auto& row : rows)
            exact += row[element];
          const double got = reference::decode(
              kBFloat16, static_cast<std::byte*>(combine.output.data) +
                             (token * 140 + static_cast<std::int64_t>(element)) * 2);
          const double largest = std::max(std::fabs(exact), std::fabs(got));
          check(std::fabs(got - exact) <=
                    reference::low_precision_bound(rows, element, kBFloat16, largest),
                "out of bounds");
        }
      }
    }
  });
}

// Slices may lie further apart than they are long.
TEST(A2aTest, WorkspaceRowsMayHaveAStride) {
  const GroupStep step = random_step(9, 2, 4, 2, 8, 3);
  const std::int64_t bytes = moe_a2a_get_workspace_size_per_rank(2, 3, 16 + 8, 16);
  const std::int64_t stride = bytes + 4096;
  A2aWorld world(2, 3, 16 + 8, 16, 0, 4096);
  TensorView workspace = world.memory.view(kUInt8, {2, bytes});
  workspace.strides[0] = stride;
  EXPECT_TRUE(all_ok(
      spawn_ranks(RankKind::kThreads, 2, [&](int rank, const std::shared_ptr<CommBackend>& comm) {
        const A2aMetainfo metainfo = moe_a2a_initialize(workspace, rank, 2, 3);
        comm->barrier();
        A2aStep runner(world, rank, metainfo, step, 16);
        runner.args.workspace = workspace;
        runner.dispatch();
        runner.check_received();
        const A2aCombineArgs combine = runner.combine_args();
        moe_a2a_combine(combine);
        runner.check_combined(combine.output);
      })));
  for (int slice = 0; slice < 2; ++slice) {
    for (std::int64_t at = bytes; at < stride; ++at) {
      ASSERT_EQ(world.memory.data()[slice * stride + at], std::byte{0x7f}) << "beyond the slice";
    }
  }
}

TEST(A2aTest, InitializingAgainMakesAUsedWorkspaceNew) {
  const GroupStep step = random_step(10, 2, 4, 2, 8, 3);
  const A2aWorld world(2, 3, 16 + 8, 16);
  for (int life = 0; life < 3; ++life) {
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      for (int round = 0; round <= life; ++round)
        A2aStep(world, rank, metainfo, step, 16).run();
    });
  }
}

TEST(A2aTest, SanitizeMarksRowsWithoutATokenAndNoOthers) {
  const A2aWorld world(2, 4, 16 + 8, 16);
  for (const std::int64_t invalid :
       {std::int64_t{-1}, std::int64_t{4}, std::int64_t{-2147483648}}) {
    GroupStep step = random_step(11, 2, 4, 2, 8, 4);
    step.num_tokens = {2, 0};
    step.invalid_expert_id = invalid;
    random_ids(step, false);
    world.run([&](int rank, const A2aMetainfo& metainfo) {
      A2aStep(world, rank, metainfo, step, 16).run();
    });
  }
}

TEST(A2aTest, WrapGivesAViewOfTheBytesBetween) {
  const Bytes memory(1000);
  const TensorView workspace = memory.view(kUInt8, {4, 250});
  const TensorView view = moe_a2a_wrap_payload_tensor_in_workspace(workspace, {2, 3}, 100,
                                                                   100 + 2 * 3 * 5 * 2, kBFloat16);
  EXPECT_EQ(view.data, memory.data() + 100);
  EXPECT_EQ(describe(view), "BFloat16 [2, 3, 5]");
  EXPECT_EQ(describe(moe_a2a_wrap_payload_tensor_in_workspace(workspace, {}, 0, 1000, kFloat32)),
            "Float32 [250]");
  EXPECT_EQ(describe(moe_a2a_wrap_payload_tensor_in_workspace(workspace, {7}, 8, 8, kInt64)),
            "Int64 [7, 0]");
}

TEST(A2aTest, ActiveRankMaskIsASet) {
  EXPECT_EQ(moe_a2a_active_rank_mask({0, 1, 2}, 3), RankMask::first(3));
  RankMask mask;
  mask.set(5);
  mask.set(200);
  EXPECT_EQ(moe_a2a_active_rank_mask({200, 5, 5}, 256), mask);
  EXPECT_TRUE(moe_a2a_active_rank_mask({}, 4).empty());
  for (const int rank : {-1, 4, 256}) {
    EXPECT_THROW(moe_a2a_active_rank_mask({rank}, 4), std::invalid_argument) << rank;
  }
  EXPECT_THROW(moe_a2a_active_rank_mask({}, 0), std::invalid_argument);
  EXPECT_THROW(moe_a2a_active_rank_mask({}, 257), std::invalid_argument);
}

}  // namespace
}  // namespace moe_ep
