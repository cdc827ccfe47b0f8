// Which transport a step takes, and what an instance says of it.
#include "core/transports.hpp"

#include <gtest/gtest.h>
#include <moe_ep/host.hpp>
#include <moe_ep/plan.hpp>

#include <vector>

namespace moe_ep {
namespace {

constexpr std::int64_t kHidden = 64;
constexpr std::int64_t kTopK = 2;

MoEEpCommParams params_of(std::optional<QuantFormat> format = std::nullopt,
                          std::optional<DType> dtype = std::nullopt) {
  return {.num_experts = 4,
          .top_k = kTopK,
          .max_tokens_per_rank = 8,
          .hidden_size = kHidden,
          .dtype = dtype,
          .dispatch_format = format};
}

struct Sent {
  DType dtype = kBFloat16;
  std::int64_t width = kHidden;
  std::optional<DType> scale_dtype = std::nullopt;
  std::int64_t scale_width = 0;
  std::int64_t tokens_per_rank = 8;
  bool extra = false;
  bool stats = false;
};

// One step of one rank; the transport it took.
Transport transport_of(HostAlltoAll& comm, const Sent& sent) {
  std::vector<std::byte> bytes(4096);
  std::vector<std::int32_t> ids(2 * kTopK, 1);
  std::vector<std::int32_t> stats(4, 1);
  DispatchInputs inputs;
  inputs.hidden_states = TensorView(bytes.data(), sent.dtype, {2, sent.width});
  inputs.topk_ids = TensorView(ids.data(), kInt32, {2, kTopK});
  inputs.runtime_max_tokens_per_rank = sent.tokens_per_rank;
  if (sent.scale_dtype) {
    inputs.hidden_states_scale = TensorView(bytes.data(), *sent.scale_dtype, {2, sent.scale_width});
  }
  if (sent.extra) inputs.extra_payloads = {{"x", TensorView(bytes.data(), kUInt8, {2, 4})}};
  if (sent.stats) inputs.eplb_local_stats = TensorView(stats.data(), kInt32, {4});
  comm.dispatch(inputs);
  const DType dtype = comm.params().token_dtype();
  std::vector<std::byte> output(2 * kHidden * 4);
  comm.combine(comm.get_combine_input_buffer(dtype),
               TensorView(output.data(), dtype, {2, kHidden}));
  return comm.last_transport().value();
}

HostAlltoAllConfig config_of(std::optional<bool> lamport,
                             std::optional<std::int64_t> max_tokens = std::nullopt) {
  HostAlltoAllConfig config;
  config.lamport = lamport;
  config.lamport_max_tokens = max_tokens;
  config.extra_payload_bytes_per_token = 16;
  config.eplb_stats_num_experts = 4;
  return config;
}

TEST(TransportsTest, SmallStepsTakeLamport) {
  HostAlltoAll comm({}, params_of(), config_of(true));
  EXPECT_TRUE(comm.lamport_enabled());
  EXPECT_EQ(comm.lamport_max_tokens(), 8);
  EXPECT_FALSE(comm.last_transport().has_value());
  EXPECT_EQ(transport_of(comm, {}), Transport::kLamport);
  // Who does not ask takes it as far as the platform gains from it.
  HostAlltoAll usual({}, params_of(), config_of(std::nullopt));
  EXPECT_TRUE(usual.lamport_enabled());
  EXPECT_EQ(usual.lamport_max_tokens(), 1);
  EXPECT_EQ(transport_of(usual, {}), Transport::kFence);
}

TEST(TransportsTest, OtherStepsTakeFence) {
  HostAlltoAll comm({}, params_of(), config_of(true, 5));
  EXPECT_EQ(comm.lamport_max_tokens(), 5);
  EXPECT_EQ(transport_of(comm, {.tokens_per_rank = 5}), Transport::kLamport);
  EXPECT_EQ(transport_of(comm, {.tokens_per_rank = 6}), Transport::kFence);
  const auto small = [&](Sent sent) {
    sent.tokens_per_rank = 5;
    return transport_of(comm, sent);
  };
  EXPECT_EQ(small({.extra = true}), Transport::kFence);
  EXPECT_EQ(small({.stats = true}), Transport::kFence);
  EXPECT_EQ(small({.dtype = kFloat16}), Transport::kFence);
  EXPECT_EQ(small({.dtype = kFloat8E4M3FN}), Transport::kFence);
  EXPECT_EQ(small({.width = kHidden + 4}), Transport::kFence);
  EXPECT_EQ(small({.width = 3}), Transport::kLamport);
  EXPECT_EQ(small({.scale_dtype = kUInt8, .scale_width = 16}), Transport::kLamport);
}

TEST(TransportsTest, DtypeOfTheStepMustBeThatOfTheFormat) {
  struct Case {
    QuantFormat format;
    Sent sent;
    Transport want;
  };
  const Transport lamport = Transport::kLamport;
  const Transport fence = Transport::kFence;
  for (const Case& c : {
           Case{QuantFormat::kBF16, {}, lamport},
           Case{QuantFormat::kDeepSeekFp8, {kFloat8E4M3FN, kHidden, kFloat32, 1}, lamport},
           Case{QuantFormat::kDeepSeekFp8, {kUInt8, kHidden, kFloat32, 1}, fence},
           Case{QuantFormat::kDeepSeekFp8, {kBFloat16, 16}, fence},
           Case{QuantFormat::kMXFP8, {kFloat8E4M3FN, kHidden, kUInt8, 2}, lamport},
           Case{QuantFormat::kMXFP8, {kFloat8E4M3FN, kHidden, kFloat8E8M0FNU, 2}, lamport},
           Case{QuantFormat::kNVFP4, {kUInt8, kHidden / 2, kFloat8E4M3FN, 4}, lamport},
           Case{QuantFormat::kNVFP4, {kFloat4E2M1FNx2, kHidden / 2, kUInt8, 4}, lamport},
           Case{QuantFormat::kNVFP4, {kFloat8E4M3FN, kHidden / 2}, fence},
       }) {
    HostAlltoAll comm({}, params_of(c.format), config_of(true));
    EXPECT_TRUE(comm.lamport_enabled());
    EXPECT_EQ(transport_of(comm, c.sent), c.want)
        << quant_format_name(c.format) << " " << dtype_name(c.sent.dtype);
  }
}

TEST(TransportsTest, InstancesThatCannotTakeLamportHaveNoRegionsForIt) {
  HostAlltoAllConfig low = config_of(std::nullopt);
  low.use_low_precision_combine = true;
  HostAlltoAllConfig cft = config_of(std::nullopt);
  cft.cft = true;
  struct Case {
    MoEEpCommParams params;
    HostAlltoAllConfig config;
  };
  for (const Case& c :
       {Case{params_of(std::nullopt, kFloat16), config_of(true)},
        Case{params_of(std::nullopt, kFloat32), config_of(std::nullopt)},
        Case{params_of(QuantFormat::kFP16), config_of(true)},
        Case{params_of(QuantFormat::kFP8PerTensor), config_of(std::nullopt)},
        Case{params_of(QuantFormat::kMXFP4), config_of(std::nullopt)}, Case{params_of(), low},
        Case{params_of(), cft}, Case{params_of(), config_of(false)}}) {
    HostAlltoAll comm({}, c.params, c.config);
    EXPECT_FALSE(comm.lamport_enabled());
    EXPECT_EQ(comm.lamport_max_tokens(), 0);
    for (const WorkspaceRegion& region : plan_workspace(1, c.params, c.config).regions) {
      if (region.name.starts_with("lamport")) {
        EXPECT_EQ(region.bytes, 0) << region.name;
      }
    }
  }
}

TEST(TransportsTest, CountedWritesTakeRowsOfMultiplesOf16Bytes) {
  HostAlltoAllConfig config = config_of(std::nullopt);
  config.cft = true;
  config.cft_max_tokens_for_dispatch = config.cft_max_tokens_for_combine = 1;  // ignored
  MoEEpCommParams params = params_of(std::nullopt, kFloat16);
  HostAlltoAll narrow({}, params, config);
  EXPECT_EQ(transport_of(narrow, {kFloat16}), Transport::kFence) << "ids take 8 bytes";
  params.top_k = 4;
  HostAlltoAll comm({}, params, config);
  const auto four_picks = [&](const Sent& sent) {
    std::vector<std::byte> bytes(4096);
    std::vector<std::int32_t> ids(8, 1);
    DispatchInputs inputs;
    inputs.hidden_states = TensorView(bytes.data(), sent.dtype, {2, sent.width});
    inputs.topk_ids = TensorView(ids.data(), kInt32, {2, 4});
    comm.dispatch(inputs);
    std::vector<std::byte> output(2 * kHidden * 2);
    comm.combine(comm.get_combine_input_buffer(kFloat16),
                 TensorView(output.data(), kFloat16, {2, kHidden}));
    return comm.last_transport().value();
  };
  EXPECT_EQ(four_picks({kFloat16}), Transport::kCounted);
  EXPECT_EQ(four_picks({kFloat16, kHidden - 1}), Transport::kFence);
  config.cft = std::nullopt;
  HostAlltoAll usual({}, params, config);
  EXPECT_EQ(usual.last_transport(), std::nullopt);
}

TEST(TransportsTest, DefaultLimitKeepsTheBudget) {
  for (const int ranks : {1, 2, 8, 64, 256}) {
    MoEEpCommParams params = {
        .num_experts = 256, .top_k = 8, .max_tokens_per_rank = 8192, .hidden_size = 7168};
    const auto by_default =
        detail::make_layout(ranks, params, detail::make_options(HostAlltoAllConfig{})).lamport;
    EXPECT_EQ(by_default.max_tokens, host_platform().default_lamport_tokens());
    HostAlltoAllConfig wanted;
    wanted.lamport = true;
    const auto layout = detail::make_layout(ranks, params, detail::make_options(wanted)).lamport;
    const std::int64_t bytes = layout.end - layout.tags;
    EXPECT_GE(layout.max_tokens, 1);
    EXPECT_LE(bytes, detail::kLamportBudgetBytes + 128 * 3);
    EXPECT_GT(bytes / layout.max_tokens * (layout.max_tokens + 1), detail::kLamportBudgetBytes);
    HostAlltoAllConfig asked;
    asked.lamport_max_tokens = 100000;
    EXPECT_EQ(detail::make_layout(ranks, params, detail::make_options(asked)).lamport.max_tokens,
              8192);
  }
}

}  // namespace
}  // namespace moe_ep
