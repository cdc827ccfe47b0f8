// Arguments of dispatch and combine: everything wrong is refused before anything is sent, in the
// words `operation: requirement, got value`; the instance stays as it was.
#include <moe_ep/host.hpp>

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

namespace moe_ep {
namespace {

constexpr std::int64_t kTokens = 3;

class ArgumentsTest : public ::testing::Test {
 protected:
  ArgumentsTest()
      : comm_({}, {.num_experts = 4, .top_k = 2, .max_tokens_per_rank = 4, .hidden_size = 8},
              {.extra_payload_bytes_per_token = 16, .eplb_stats_num_experts = 4}) {}

  TensorView tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
    return TensorView(memory_.data(), dtype, shape);
  }
  DispatchInputs good() {
    DispatchInputs inputs;
    inputs.hidden_states = tensor(kBFloat16, {kTokens, 8});
    inputs.topk_ids = tensor(kInt32, {kTokens, 2});
    return inputs;
  }

  template <class Error = std::invalid_argument, class Call>
  static std::string refusal(Call&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "taken";
  }
  std::string dispatch(const std::function<void(DispatchInputs&)>& change) {
    DispatchInputs inputs = good();
    change(inputs);
    return refusal([&] { comm_.dispatch(inputs); });
  }

  alignas(64) std::array<std::byte, 4096> memory_{};
  HostAlltoAll comm_;
};

TensorView on_gpu(TensorView view) {
  view.device = {Device::kCuda, 1};
  return view;
}

TEST_F(ArgumentsTest, DispatchRefusals) {
  using D = DispatchInputs;
  const std::vector<std::pair<std::function<void(D&)>, std::string>> cases = {
      {[&](D& d) { d.topk_ids = tensor(kFloat32, {4, 2}); },
       "dispatch: topk_ids must be int32 or int64 [n, 2], got Float32 [4, 2]"},
      {[&](D& d) { d.topk_ids = tensor(kUInt32, {3, 2}); },
       "dispatch: topk_ids must be int32 or int64 [n, 2], got UInt32 [3, 2]"},
      {[&](D& d) { d.topk_ids = tensor(kInt32, {3, 3}); },
       "dispatch: topk_ids must be int32 or int64 [n, 2], got Int32 [3, 3]"},
      {[&](D& d) { d.topk_ids = tensor(kInt32, {6}); },
       "dispatch: topk_ids must be int32 or int64 [n, 2], got Int32 [6]"},
      {[&](D& d) { d.topk_ids = on_gpu(d.topk_ids); },
       "dispatch: topk_ids must be a CPU tensor, got Int32 [3, 2] on cuda:1"},
      {[&](D& d) { d.hidden_states = tensor(kBFloat16, {4, 8}); },
       "dispatch: hidden_states must be [3, *] as topk_ids is, got BFloat16 [4, 8]"},
      {[&](D& d) { d.hidden_states = tensor(kBFloat16, {3, 2, 4}); },
       "dispatch: hidden_states must be [n, w], got BFloat16 [3, 2, 4]"},
      {[&](D& d) { d.hidden_states = on_gpu(d.hidden_states); },
       "dispatch: hidden_states must be a CPU tensor, got BFloat16 [3, 8] on cuda:1"},
      {[&](D& d) { d.hidden_states = tensor(kBFloat16, {3, 0}); },
       "dispatch: hidden_states must have rows of 1 to 2^31 - 1 bytes, got BFloat16 [3, 0]"},
      {[&](D& d) { d.hidden_states = tensor(kBFloat16, {3, 1ll << 31}); },
       "dispatch: hidden_states must have rows of 1 to 2^31 - 1 bytes, got BFloat16 [3, "
       "2147483648]"},
      // 2^62 elements: their bytes do not even fit into 64 bits.
      {[&](D& d) { d.hidden_states = tensor(kInt64, {3, 1ll << 61}); },
       "dispatch: hidden_states must have rows of 1 to 2^31 - 1 bytes, got Int64 [3, "
       "2305843009213693952]"},
      {[&](D& d) { d.topk_weights = tensor(kFloat32, {3, 3}); },
       "dispatch: topk_weights must be [n, 2] of a dtype of at most 4 bytes, got Float32 [3, 3]"},
      {[&](D& d) { d.topk_weights = tensor(kFloat64, {3, 2}); },
       "dispatch: topk_weights must be [n, 2] of a dtype of at most 4 bytes, got Float64 [3, 2]"},
      {[&](D& d) { d.topk_weights = tensor(kFloat32, {2, 2}); },
       "dispatch: topk_weights must be [3, *] as topk_ids is, got Float32 [2, 2]"},
      {[&](D& d) { d.hidden_states_scale = tensor(kUInt8, {2, 2}); },
       "dispatch: hidden_states_scale must be [3, *] as topk_ids is, got UInt8 [2, 2]"},
      {[&](D& d) { d.extra_payloads = {{"bias", tensor(kUInt8, {3, 17})}}; },
       "dispatch: hidden_states, scales and extra payloads may take 32 bytes a token "
       "(dispatch_bytes_per_token 16 + extra_payload_bytes_per_token 16), got 33"},
      {[&](D& d) { d.extra_payloads = {{"bias", on_gpu(tensor(kUInt8, {3, 1}))}}; },
       "dispatch: extra_payloads['bias'] must be a CPU tensor, got UInt8 [3, 1] on cuda:1"},
      {[&](D& d) {
         d.hidden_states = tensor(kBFloat16, {5, 8});
         d.topk_ids = tensor(kInt32, {5, 2});
       },
       "dispatch: a rank may send at most 4 (max_tokens_per_rank) tokens, got 5"},
      {[&](D& d) { d.runtime_max_tokens_per_rank = 5; },
       "dispatch: runtime_max_tokens_per_rank must lie in 1..4 (max_tokens_per_rank), got 5"},
      {[&](D& d) { d.active_rank_mask = RankMask::first(1); },
       "dispatch: active_rank_mask needs enable_rank_mask=True at construction, got a mask "
       "without it"},
      {[&](D& d) { d.eplb_local_stats = tensor(kInt32, {3}); },
       "dispatch: eplb_local_stats must be a contiguous CPU int32 [4], got Int32 [3]"},
  };
  for (const auto& [change, text] : cases)
    EXPECT_EQ(dispatch(change), text);
  EXPECT_EQ(comm_.last_transport(), std::nullopt);
  // After all that a good one is taken.
  comm_.dispatch(good());
}

TEST_F(ArgumentsTest, CombineRefusals) {
  comm_.dispatch(good());
  const TensorView rows = tensor(kBFloat16, {4, 8});
  const TensorView output = tensor(kBFloat16, {kTokens, 8});
  const auto combine = [&](const TensorView& answers, const TensorView& result) {
    return refusal([&] { comm_.combine(answers, result); });
  };
  const std::string shape = "combine: expert_output must be [4, 8] or [1, 4, 8], got ";
  EXPECT_EQ(combine(tensor(kBFloat16, {3, 8}), output), shape + "BFloat16 [3, 8]");
  EXPECT_EQ(combine(tensor(kBFloat16, {4, 7}), output), shape + "BFloat16 [4, 7]");
  EXPECT_EQ(combine(tensor(kBFloat16, {32}), output), shape + "BFloat16 [32]");
  EXPECT_EQ(combine(tensor(kBFloat16, {4, 1, 8}), output), shape + "BFloat16 [4, 1, 8]");
  EXPECT_EQ(combine(tensor(kFloat16, {4, 8}), output),
            "combine: expert_output must be BFloat16 (params.dtype), got Float16 [4, 8]");
  EXPECT_EQ(combine(on_gpu(rows), output),
            "combine: expert_output must be a CPU tensor, got BFloat16 [4, 8] on cuda:1");
  const std::string result = "combine: output must be a contiguous CPU BFloat16 [3, 8], got ";
  EXPECT_EQ(combine(rows, tensor(kBFloat16, {4, 8})), result + "BFloat16 [4, 8]");
  EXPECT_EQ(combine(rows, tensor(kFloat32, {3, 8})), result + "Float32 [3, 8]");
  EXPECT_EQ(combine(rows, tensor(kBFloat16, {24})), result + "BFloat16 [24]");
  EXPECT_EQ(combine(rows, on_gpu(output)), result + "BFloat16 [3, 8] on cuda:1");
  TensorView apart = output;
  apart.strides[0] = 9;
  EXPECT_EQ(combine(rows, apart), result + "BFloat16 [3, 8] with strides [9, 1]");
  EXPECT_EQ(refusal([&] { comm_.get_combine_input_buffer(kFloat32); }),
            "get_combine_input_buffer: dtype must be BFloat16 (params.dtype), got Float32");

  // A piece of the combine input buffer would be overwritten while it is read.
  const TensorView buffer = comm_.get_combine_input_buffer(kBFloat16);
  TensorView shifted = buffer;
  shifted.data = static_cast<std::byte*>(buffer.data) + 16;
  EXPECT_EQ(combine(shifted, output),
            "combine: expert_output must be the whole combine input buffer or lie outside it, got "
            "a part of it");
  comm_.combine(tensor(kBFloat16, {1, 4, 8}), output);
}

// Any of the shapes that the contract names, and an output that is a slice of something larger.
TEST_F(ArgumentsTest, CombineTakesBothShapesAndGivenOutputs) {
  std::array<std::uint16_t, 8 * 8> results{};
  for (int round = 0; round < 3; ++round) {
    comm_.dispatch(good());
    const TensorView buffer = comm_.get_combine_input_buffer(kBFloat16);
    auto* rows = static_cast<std::uint16_t*>(buffer.data);
    for (int i = 0; i < 32; ++i)
      rows[i] = static_cast<std::uint16_t>(0x3f80 + i + round);
    TensorView blocks(buffer.data, kBFloat16, {1, 4, 8});
    results.fill(0x7777);
    comm_.combine(round == 0 ? buffer : blocks,
                  TensorView(results.data() + 8, kBFloat16, {kTokens, 8}));
    for (int i = 0; i < 64; ++i) {
      const bool inside = i >= 8 && i < 8 + 24;
      EXPECT_EQ(results[static_cast<std::size_t>(i)], inside ? 0x3f80 + i - 8 + round : 0x7777);
    }
  }
}

// Views are the same as long as nothing changes, so that a caller may keep them.
TEST_F(ArgumentsTest, EqualStepsReturnEqualViews) {
  const auto first = comm_.dispatch(good());
  comm_.combine(comm_.get_combine_input_buffer(kBFloat16), tensor(kBFloat16, {kTokens, 8}));
  const auto second = comm_.dispatch(good());
  EXPECT_EQ(first.hidden_states.data, second.hidden_states.data);
  EXPECT_EQ(first.topk_ids.data, second.topk_ids.data);
  EXPECT_EQ(first.recv_counts.data, second.recv_counts.data);
}

TEST_F(ArgumentsTest, DescriptionsSayWhatATensorIs) {
  EXPECT_EQ(describe(tensor(kBFloat16, {4, 7168})), "BFloat16 [4, 7168]");
  TensorView strided = tensor(kInt32, {4, 8});
  strided.strides[0] = 16;
  EXPECT_EQ(describe(strided), "Int32 [4, 8] with strides [16, 1]");
  EXPECT_EQ(describe(on_gpu(tensor(kUInt8, {}))), "UInt8 [] on cuda:1");
}

}  // namespace
}  // namespace moe_ep
