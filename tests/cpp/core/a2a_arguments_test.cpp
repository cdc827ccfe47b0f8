// Arguments of the stateless family: what is refused, in which words, before anything is sent.
#include <moe_ep/a2a.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/a2a_world.hpp"

namespace moe_ep {
namespace {

using namespace testing;
using ::testing::HasSubstr;

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "taken";
}

TensorView on_gpu(TensorView view) {
  view.device = {Device::kCuda, 0};
  return view;
}

TEST(A2aArgumentsTest, SizesOutsideTheirRangeAreRefused) {
  const std::string op = "moe_a2a_get_workspace_size_per_rank: ";
  const auto size = [](std::int64_t ranks, std::int64_t tokens, std::int64_t dispatch,
                       std::int64_t combine, std::int64_t eplb) {
    return refusal(
        [&] { moe_a2a_get_workspace_size_per_rank(ranks, tokens, dispatch, combine, eplb); });
  };
  EXPECT_EQ(size(4, 8, 16, 16, 0), "taken");
  EXPECT_EQ(size(0, 8, 16, 16, 0), op + "ep_size must lie in 1..256, got 0");
  EXPECT_EQ(size(257, 8, 16, 16, 0), op + "ep_size must lie in 1..256, got 257");
  EXPECT_EQ(size(4, 0, 16, 16, 0), op + "max_num_tokens must be a positive 32-bit integer, got 0");
  EXPECT_EQ(size(4, 1ll << 31, 16, 16, 0),
            op + "max_num_tokens must be a positive 32-bit integer, got 2147483648");
  EXPECT_EQ(size(4, 8, -1, 16, 0),
            op + "total_dispatch_payload_size_per_token must be at least 0, got -1");
  EXPECT_EQ(size(4, 8, 16, -1, 0),
            op + "combine_payload_size_per_token must be at least 0, got -1");
  EXPECT_EQ(size(4, 8, 16, 16, -1),
            op + "eplb_stats_num_experts must be a 32-bit integer of at least 0, got -1");
}

// No sum of sizes may wrap into a small workspace.
TEST(A2aArgumentsTest, SizesBeyond64BitsAreRefused) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t row : {kHuge, kHuge / 2, kHuge / 256, (std::int64_t{1} << 62) + 1}) {
    EXPECT_NE(refusal([&] { moe_a2a_get_workspace_size_per_rank(256, 1 << 30, row, 16); }), "taken")
        << row;
    EXPECT_NE(refusal([&] { moe_a2a_get_workspace_size_per_rank(256, 1 << 30, 16, row); }), "taken")
        << row;
  }
  // What fits into 64 bits is counted.
  EXPECT_GT(moe_a2a_get_workspace_size_per_rank(256, 1 << 20, 1 << 24, 1 << 24),
            std::int64_t{256} << 44);
}

TEST(A2aArgumentsTest, InitializeRefusals) {
  const std::string op = "moe_a2a_initialize: ";
  const A2aWorld world(2, 4, 24, 16);
  const TensorView good = world.workspace();
  const auto initialize = [&](const TensorView& workspace, std::int64_t rank) {
    return refusal([&] { moe_a2a_initialize(workspace, rank, 2, 4); });
  };
  EXPECT_EQ(initialize(good, 0), "taken");
  EXPECT_THAT(initialize(world.memory.view(kInt8, {2, world.slice_bytes}), 0),
              HasSubstr(op + "workspace must be uint8 [2, bytes] with contiguous rows, got Int8"));
  EXPECT_THAT(initialize(world.memory.view(kUInt8, {1, world.slice_bytes}), 0),
              HasSubstr("workspace must be uint8 [2, bytes]"));
  EXPECT_THAT(initialize(world.memory.view(kUInt8, {2 * world.slice_bytes}), 0),
              HasSubstr("workspace must be uint8 [2, bytes]"));
  TensorView strided = good;
  strided.shape[1] /= 2;
  strided.strides[1] = 2;
  EXPECT_THAT(initialize(strided, 0), HasSubstr("with contiguous rows"));
  TensorView shifted = good;
  shifted.data = static_cast<std::byte*>(good.data) + 8;
  EXPECT_THAT(initialize(shifted, 0), HasSubstr("must start at multiples of 16 bytes"));
  TensorView odd = good;
  odd.shape[1] -= 8;
  odd.strides[0] -= 8;
  EXPECT_THAT(initialize(odd, 0), HasSubstr("must start at multiples of 16 bytes"));
  EXPECT_EQ(initialize(good, 2), op + "ep_rank must lie in [0, ep_size = 2), got 2");
  EXPECT_EQ(initialize(good, -1), op + "ep_rank must lie in [0, ep_size = 2), got -1");
  EXPECT_THAT(initialize(on_gpu(good), 0), HasSubstr("workspace"));
  EXPECT_THAT(initialize(world.memory.view(kUInt8, {2, 256}), 0), HasSubstr("workspace needs"));
}

TEST(A2aArgumentsTest, DispatchRefusals) {
  const std::string op = "moe_a2a_dispatch: ";
  const GroupStep step = random_step(1, 2, 4, 2, 8, 3);
  const A2aWorld world(2, 4, 16 + 8, 16, 3);
  const Bytes spare(4096);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    const auto text = [&](const std::function<void(A2aDispatchArgs&)>& change) {
      A2aStep runner(world, rank, metainfo, step, 16);
      change(runner.args);
      return refusal([&] { moe_a2a_dispatch(runner.args); });
    };
    using A = A2aDispatchArgs;
    EXPECT_EQ(text([](A& a) { a.ep_size = 3; }),
              op + "ep_size must be 2 as moe_a2a_initialize was called with, got 3");
    EXPECT_EQ(text([](A& a) { a.top_k = 0; }), op + "top_k must lie in 1..64, got 0");
    EXPECT_EQ(text([](A& a) { a.top_k = 65; }), op + "top_k must lie in 1..64, got 65");
    EXPECT_THAT(text([](A& a) { a.top_k = 3; }),
                HasSubstr("token_selected_experts must be int32 or int64 [n, 3]"));
    EXPECT_EQ(text([](A& a) { a.num_experts = 0; }),
              op + "num_experts must be a positive 32-bit integer, got 0");
    EXPECT_EQ(text([](A& a) { a.runtime_max_tokens_per_rank = 5; }),
              op + "runtime_max_tokens_per_rank must lie in 1..4 (max_num_tokens), got 5");
    EXPECT_EQ(text([](A& a) { a.runtime_max_tokens_per_rank = 0; }),
              op + "runtime_max_tokens_per_rank must lie in 1..4 (max_num_tokens), got 0");
    EXPECT_THAT(text([&](A& a) { a.token_selected_experts = spare.view(kFloat32, {1, 2}); }),
                HasSubstr("must be int32 or int64"));
    EXPECT_THAT(text([&](A& a) {
                  a.token_selected_experts = spare.view(kInt32, {4, 2});
                  for (TensorView& payload : a.input_payloads) {
                    payload = spare.view(kUInt8, {4, 8});
                  }
                }),
                HasSubstr("a rank may send at most 3 (runtime_max_tokens_per_rank) tokens, got 4"));
    EXPECT_THAT(text([&](A& a) { a.input_payloads[0] = spare.view(kUInt8, {9, 16}); }),
                HasSubstr("input_payloads[0] must be ["));
    // Its result would have five.
    EXPECT_THAT(text([&](A& a) {
                  const std::int64_t n = a.input_payloads[1].size(0);
                  a.input_payloads[1] = spare.view(kUInt8, {n, 2, 2, 2});
                }),
                HasSubstr("input_payloads[1] must have at most 3 dimensions, got UInt8 ["));
    EXPECT_THAT(text([&](A& a) { a.input_payloads[1] = on_gpu(a.input_payloads[1]); }),
                HasSubstr("input_payloads[1] must be a CPU tensor"));
    EXPECT_THAT(text([&](A& a) { a.eplb_local_stats = spare.view(kInt32, {4}); }),
                HasSubstr("eplb_local_stats must be a contiguous CPU int32 [3]"));
    EXPECT_EQ(text([](A& a) { a.active_rank_mask = RankMask::first(2); }),
              op + "active_rank_mask needs enable_rank_mask=True, got False");
    EXPECT_THAT(text([&](A& a) {
                  a.enable_rank_mask = true;
                  a.active_rank_mask = RankMask{};
                }),
                HasSubstr("must contain the own rank"));
    EXPECT_THAT(text([&](A& a) {
                  a.enable_rank_mask = true;
                  a.active_rank_mask = RankMask::first(3);
                }),
                HasSubstr("must name ranks below 2, got rank 2"));
    // SPEC 9: kernels do not mix on a workspace.
    EXPECT_EQ(text([](A& a) { a.backend = A2aBackend::kCake; }),
              op + "backend must be the one moe_a2a_initialize was called with, 'trtllm', got "
                   "'cake'");
    // metainfo of something else
    EXPECT_THAT(text([](A& a) {
                  a.metainfo = {};
                  a.ep_size = 0;
                }),
                HasSubstr("metainfo must come from moe_a2a_initialize"));
    EXPECT_THAT(text([](A& a) { a.metainfo.slice_bytes += 128; }),
                HasSubstr("bytes as moe_a2a_initialize saw it"));
    A2aStep(world, rank, metainfo, step, 16).run();
  });
}

// FR-010, FR-011: payloads that the workspace has no room for.
TEST(A2aArgumentsTest, PayloadsOverTheWorkspaceAreRefusedWithTheNumbers) {
  const GroupStep step = random_step(2, 2, 4, 2, 64, 4);
  const A2aWorld world(2, 4, 16 + 8, 128);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    A2aStep fits(world, rank, metainfo, step, 16);
    fits.run();
    A2aStep over(world, rank, metainfo, step, 1000);
    const std::string text = refusal([&] { over.dispatch(); });
    EXPECT_THAT(text, HasSubstr("bytes a slice for payloads, got steps that need"));
    // A dispatch that fits by itself must not grow into what a combine has used.
    A2aStep between(world, rank, metainfo, step, 16 + 1000 / 8);
    EXPECT_NE(refusal([&] { between.dispatch(); }), "taken");
    fits.run();
  });
}

TEST(A2aArgumentsTest, CombineRefusals) {
  const std::string op = "moe_a2a_combine: ";
  const GroupStep step = random_step(3, 2, 4, 2, 8, 3);
  const A2aWorld world(2, 4, 16 + 8, 16);
  const Bytes spare(4096);
  world.run([&](int rank, const A2aMetainfo& metainfo) {
    A2aStep runner(world, rank, metainfo, step, 16);
    runner.dispatch();
    const std::int64_t n = step.num_tokens[static_cast<std::size_t>(rank)];
    const auto text = [&](const std::function<void(A2aCombineArgs&)>& change) {
      A2aCombineArgs args = runner.combine_args();
      change(args);
      return refusal([&] { moe_a2a_combine(args); });
    };
    using A = A2aCombineArgs;
    EXPECT_EQ(text([](A& a) { a.ep_size = 1; }),
              op + "ep_size must be 2 as moe_a2a_initialize was called with, got 1");
    EXPECT_THAT(text([](A& a) { a.combine_payload_offset += 1; }),
                HasSubstr("as moe_a2a_dispatch returned it"));
    EXPECT_EQ(text([](A& a) { a.local_num_tokens = 4; }),
              op + "local_num_tokens must lie in 0..3, got 4");
    EXPECT_EQ(text([](A& a) { a.local_num_tokens = -1; }),
              op + "local_num_tokens must lie in 0..3, got -1");
    EXPECT_THAT(text([&](A& a) { a.payload = spare.view(kInt32, {6, 8}); }),
                HasSubstr("payload must be bfloat16, float16 or float32"));
    EXPECT_THAT(text([&](A& a) { a.payload = spare.view(kBFloat16, {5, 8}); }),
                HasSubstr("must be [6, 8] or [2, 3, 8]"));
    EXPECT_THAT(text([&](A& a) { a.payload = on_gpu(a.payload); }), HasSubstr("CPU tensor"));
    EXPECT_THAT(text([&](A& a) { a.output = spare.view(kBFloat16, {n + 1, 8}); }),
                HasSubstr("output must be a contiguous CPU tensor [" + std::to_string(n) + ", 8]"));
    EXPECT_THAT(text([&](A& a) { a.output = spare.view(kInt32, {n, 8}); }),
                HasSubstr("output must be bfloat16, float16, float32, float8_e4m3fn or packed"));
    EXPECT_THAT(text([&](A& a) { a.output_scales = spare.view(kUInt8, {n, 1}); }),
                HasSubstr("output_scales belong to a quantised output"));
    EXPECT_THAT(text([&](A& a) { a.output = spare.view(kFloat8E4M3FN, {n, 8}); }),
                HasSubstr("a quantised output needs output_scales"));
    EXPECT_THAT(text([&](A& a) { a.payload_in_workspace = true; }),
                HasSubstr("payload must be the workspace view at combine_payload_offset"));
    EXPECT_EQ(text([](A& a) { a.backend = A2aBackend::kCake; }),
              op + "backend must be the one moe_a2a_initialize was called with, 'trtllm', got "
                   "'cake'");
    EXPECT_THAT(text([](A& a) { a.active_rank_mask = RankMask::first(2); }),
                HasSubstr("active_rank_mask needs enable_rank_mask=True"));
    A2aCombineArgs good = runner.combine_args();
    moe_a2a_combine(good);
    runner.check_combined(good.output);
  });
}

TEST(A2aArgumentsTest, SanitizeAndWrapRefusals) {
  const A2aWorld world(2, 4, 24, 16);
  const A2aMetainfo metainfo = world.initialize(0);
  const Bytes spare(4096);
  const auto sanitize = [&](const TensorView& ids, std::int64_t invalid) {
    return refusal(
        [&] { moe_a2a_sanitize_expert_ids(ids, world.workspace(), metainfo, 0, invalid); });
  };
  EXPECT_EQ(sanitize(spare.view(kInt32, {2, 3, 2}), -1), "taken");
  for (const TensorView& ids :
       {spare.view(kInt64, {2, 3, 2}), spare.view(kInt32, {6, 2}), spare.view(kInt32, {3, 3, 2}),
        on_gpu(spare.view(kInt32, {2, 3, 2}))}) {
    EXPECT_THAT(sanitize(ids, -1), HasSubstr("expert_ids must be a contiguous CPU int32 [2, T,"));
  }
  EXPECT_THAT(sanitize(spare.view(kInt32, {2, 5, 2}), -1), HasSubstr("must lie in 1..4"));
  EXPECT_EQ(sanitize(spare.view(kInt32, {2, 3, 2}), 1ll << 31),
            "moe_a2a_sanitize_expert_ids: invalid_expert_id must be an int32, got 2147483648");

  const TensorView workspace = spare.view(kUInt8, {4, 1024});
  const auto wrap = [&](const std::vector<std::int64_t>& shape, std::int64_t start,
                        std::int64_t end) {
    return refusal(
        [&] { moe_a2a_wrap_payload_tensor_in_workspace(workspace, shape, start, end, kInt32); });
  };
  EXPECT_EQ(wrap({2}, 0, 4096), "taken");
  EXPECT_THAT(wrap({2}, -1, 8), HasSubstr("must lie in the workspace's 4096 bytes, got -1..8"));
  EXPECT_THAT(wrap({2}, 16, 8), HasSubstr("got 16..8"));
  EXPECT_THAT(wrap({2}, 0, 4097), HasSubstr("got 0..4097"));
  EXPECT_THAT(wrap({3}, 0, 16), HasSubstr("16 bytes must divide into 3 rows of Int32"));
  EXPECT_THAT(wrap({0}, 0, 16), HasSubstr("leading_shape must lie in 1..281474976710656, got 0"));
  EXPECT_THAT(wrap({1, 1, 1, 1}, 0, 16), HasSubstr("at most 3 dimensions, got 4"));
  // Whose product is 0 in 64 bits.
  EXPECT_THAT(wrap({std::int64_t{1} << 32, std::int64_t{1} << 32}, 0, 16),
              HasSubstr("leading_shape must have at most 281474976710656 rows"));
}

}  // namespace
}  // namespace moe_ep
