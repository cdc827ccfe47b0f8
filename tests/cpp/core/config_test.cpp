// Configuration: what is refused, and in which words.
#include <moe_ep/config.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace moe_ep {
namespace {

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

BootstrapConfig good_bootstrap() {
  BootstrapConfig bootstrap;
  bootstrap.world_size = 4;
  bootstrap.rank = 1;
  return bootstrap;
}

MoEEpCommParams good_params() {
  return {.num_experts = 8, .top_k = 2, .max_tokens_per_rank = 16, .hidden_size = 64};
}

template <class Config>
struct Case {
  std::function<void(Config&)> change;
  std::string text;
};

TEST(ConfigTest, BootstrapRefusals) {
  const std::vector<Case<BootstrapConfig>> cases = {
      {[](auto&) {}, "accepted"},
      {[](auto& c) { c.world_size = 256; }, "accepted"},
      {[](auto& c) { c.device = 0; }, "accepted"},
      {[](auto& c) { c.world_size = 0; }, "BootstrapConfig: world_size must lie in 1..256, got 0"},
      {[](auto& c) { c.world_size = 257; },
       "BootstrapConfig: world_size must lie in 1..256, got 257"},
      {[](auto& c) { c.rank = -1; },
       "BootstrapConfig: rank must lie in [0, world_size = 4), got -1"},
      {[](auto& c) { c.rank = 4; }, "BootstrapConfig: rank must lie in [0, world_size = 4), got 4"},
      {[](auto& c) { c.device = -1; },
       "BootstrapConfig: device must be a CUDA ordinal or None, got -1"},
  };
  for (const auto& c : cases) {
    BootstrapConfig config = good_bootstrap();
    c.change(config);
    EXPECT_EQ(refusal([&] { config.validate(); }), c.text);
  }
}

TEST(ConfigTest, ParamsRefusals) {
  using P = MoEEpCommParams;
  const std::string positive = " must be a positive 32-bit integer, got ";
  const std::string invalid_id =
      "MoEEpCommParams: invalid_expert_id must be an int32 outside [0, num_experts = 8), got ";
  const std::vector<Case<P>> cases = {
      {[](P&) {}, "accepted"},
      {[](P& p) { p.num_experts = 0; }, "MoEEpCommParams: num_experts" + positive + "0"},
      {[](P& p) { p.num_experts = -3; }, "MoEEpCommParams: num_experts" + positive + "-3"},
      {[](P& p) { p.num_experts = 1ll << 31; },
       "MoEEpCommParams: num_experts" + positive + "2147483648"},
      {[](P& p) { p.top_k = 0; }, "MoEEpCommParams: top_k" + positive + "0"},
      {[](P& p) { p.top_k = 9; }, "MoEEpCommParams: top_k must be at most num_experts = 8, got 9"},
      {[](P& p) { p.top_k = 65, p.num_experts = 128; },
       "MoEEpCommParams: top_k must be at most 64, got 65"},
      {[](P& p) { p.top_k = 64, p.num_experts = 128; }, "accepted"},
      {[](P& p) { p.max_tokens_per_rank = 0; },
       "MoEEpCommParams: max_tokens_per_rank" + positive + "0"},
      {[](P& p) { p.hidden_size = -1; }, "MoEEpCommParams: hidden_size" + positive + "-1"},
      // FR-038: a marker that is an expert would be mistaken for one.
      {[](P& p) { p.invalid_expert_id = 0; }, invalid_id + "0"},
      {[](P& p) { p.invalid_expert_id = 7; }, invalid_id + "7"},
      {[](P& p) { p.invalid_expert_id = 8; }, "accepted"},
      {[](P& p) { p.invalid_expert_id = 2147483647; }, "accepted"},
      {[](P& p) { p.invalid_expert_id = 2147483648ll; }, invalid_id + "2147483648"},
      {[](P& p) { p.invalid_expert_id = -2147483648ll; }, "accepted"},
      {[](P& p) { p.invalid_expert_id = -2147483649ll; }, invalid_id + "-2147483649"},
      {[](P& p) { p.dtype = kFloat16; }, "accepted"},
      {[](P& p) { p.dtype = kFloat32; }, "accepted"},
      {[](P& p) { p.dtype = kFloat8E4M3FN; },
       "MoEEpCommParams: dtype must be bfloat16, float16, float32 or None, got Float8E4M3FN"},
      {[](P& p) { p.dtype = kInt32; },
       "MoEEpCommParams: dtype must be bfloat16, float16, float32 or None, got Int32"},
      {[](P& p) { p.hidden_size = 1ll << 30; },
       "MoEEpCommParams: a row must take less than 2^31 bytes, got hidden_size 1073741824"},
      {[](P& p) { p.hidden_size = (1ll << 30) - 1; }, "accepted"},
  };
  for (const auto& c : cases) {
    P params = good_params();
    c.change(params);
    EXPECT_EQ(refusal([&] { params.validate(); }), c.text);
  }
}

// What the one-sided backends have in common.
template <class Config>
void expect_common_refusals(const std::string& type) {
  const std::vector<Case<Config>> cases = {
      {[](auto&) {}, "accepted"},
      {[](auto& c) { c.extra_payload_bytes_per_token = -1; },
       type + ": extra_payload_bytes_per_token must be a 32-bit integer of at least 0, got -1"},
      {[](auto& c) { c.eplb_stats_num_experts = -1; },
       type + ": eplb_stats_num_experts must lie in [0, num_experts = 8], got -1"},
      {[](auto& c) { c.eplb_stats_num_experts = 9; },
       type + ": eplb_stats_num_experts must lie in [0, num_experts = 8], got 9"},
      {[](auto& c) { c.eplb_stats_num_experts = 8; }, "accepted"},
      {[](auto& c) { c.timeout_sec = 0; }, type + ": timeout_sec must lie in 1..86400, got 0"},
      {[](auto& c) { c.timeout_sec = -5; }, type + ": timeout_sec must lie in 1..86400, got -5"},
      {[](auto& c) { c.timeout_sec = 86401; },
       type + ": timeout_sec must lie in 1..86400, got 86401"},
      {[](auto& c) { c.timeout_sec = 86400; }, "accepted"},
  };
  for (const auto& c : cases) {
    Config config;
    c.change(config);
    EXPECT_EQ(refusal([&] { config.validate(good_bootstrap(), good_params()); }), c.text);
  }
  MoEEpCommParams odd = good_params();
  odd.num_experts = 9;
  EXPECT_EQ(refusal([&] { Config{}.validate(good_bootstrap(), odd); }),
            type + ": num_experts must be divisible by world_size = 4, got 9");
}

template <class Config>
void expect_transport_refusals(const std::string& type) {
  const std::vector<Case<Config>> cases = {
      {[](auto& c) { c.lamport = true, c.cft = true; },
       type + ": at most one of lamport and cft may be True, got both"},
      {[](auto& c) { c.lamport = true, c.cft = false; }, "accepted"},
      {[](auto& c) { c.lamport = false, c.cft = true; }, "accepted"},
      {[](auto& c) { c.lamport_max_tokens = 0; },
       type + ": lamport_max_tokens must be a positive integer or None, got 0"},
      {[](auto& c) { c.lamport_max_tokens = 64; }, "accepted"},
      {[](auto& c) { c.cft_max_tokens_for_dispatch = -1; },
       type + ": cft_max_tokens_for_dispatch must be at least 0, got -1"},
      {[](auto& c) { c.cft_max_tokens_for_combine = -2; },
       type + ": cft_max_tokens_for_combine must be at least 0, got -2"},
  };
  for (const auto& c : cases) {
    Config config;
    c.change(config);
    EXPECT_EQ(refusal([&] { config.validate(good_bootstrap(), good_params()); }), c.text);
  }
}

template <class Config>
void expect_max_sms_refusals(const std::string& type) {
  Config config;
  config.max_sms = 0;
  EXPECT_EQ(refusal([&] { config.validate(good_bootstrap(), good_params()); }),
            type + ": max_sms must be a positive integer or None, got 0");
  config.max_sms = 1;
  EXPECT_EQ(refusal([&] { config.validate(good_bootstrap(), good_params()); }), "accepted");
}

TEST(ConfigTest, HostRefusals) {
  expect_common_refusals<HostAlltoAllConfig>("HostAlltoAllConfig");
  expect_transport_refusals<HostAlltoAllConfig>("HostAlltoAllConfig");
  for (const auto& [threads, text] : std::vector<std::pair<int, std::string>>{
           {0, "HostAlltoAllConfig: num_threads must lie in 1..1024 or be None, got 0"},
           {1025, "HostAlltoAllConfig: num_threads must lie in 1..1024 or be None, got 1025"},
           {1, "accepted"},
           {1024, "accepted"}}) {
    HostAlltoAllConfig config;
    config.num_threads = threads;
    EXPECT_EQ(refusal([&] { config.validate(good_bootstrap(), good_params()); }), text);
  }
}

TEST(ConfigTest, NVLinkOneSidedRefusals) {
  expect_common_refusals<NVLinkOneSidedConfig>("NVLinkOneSidedConfig");
  expect_transport_refusals<NVLinkOneSidedConfig>("NVLinkOneSidedConfig");
  expect_max_sms_refusals<NVLinkOneSidedConfig>("NVLinkOneSidedConfig");
}

TEST(ConfigTest, CakeRefusals) {
  expect_common_refusals<CakeAlltoAllConfig>("CakeAlltoAllConfig");
  expect_max_sms_refusals<CakeAlltoAllConfig>("CakeAlltoAllConfig");
}

TEST(ConfigTest, NVLinkTwoSidedRefusals) {
  MoEEpCommParams params = good_params();
  BootstrapConfig bootstrap;
  bootstrap.world_size = 3;
  params.num_experts = 6;
  EXPECT_EQ(refusal([&] { NVLinkTwoSidedConfig{}.validate(bootstrap, params); }),
            "NVLinkTwoSidedConfig: num_experts must be divisible by 4, got 6");
  params.num_experts = 8;
  EXPECT_EQ(refusal([&] { NVLinkTwoSidedConfig{}.validate(bootstrap, params); }),
            "NVLinkTwoSidedConfig: num_experts must be divisible by world_size = 3, got 8");
  params.num_experts = 12;
  EXPECT_EQ(refusal([&] { NVLinkTwoSidedConfig{}.validate(bootstrap, params); }), "accepted");
}

TEST(ConfigTest, TokenDtypeIsBFloat16UnlessSaid) {
  MoEEpCommParams params = good_params();
  EXPECT_EQ(params.token_dtype(), kBFloat16);
  params.dtype = kFloat32;
  EXPECT_EQ(params.token_dtype(), kFloat32);
}

// The contract's formulas, for ragged H.
TEST(ConfigTest, DispatchBytesFollowTheFormat) {
  for (const std::int64_t hidden : {1, 7, 16, 33, 128, 129, 2880, 7168}) {
    const auto ceil_div = [&](std::int64_t by) { return hidden / by + (hidden % by != 0); };
    MoEEpCommParams params = good_params();
    params.hidden_size = hidden;
    EXPECT_EQ(params.dispatch_bytes_per_token(), 2 * hidden);
    params.dtype = kFloat32;
    EXPECT_EQ(params.dispatch_bytes_per_token(), 4 * hidden);
    const std::vector<std::pair<QuantFormat, std::int64_t>> formats = {
        {QuantFormat::kBF16, 2 * hidden},
        {QuantFormat::kFP16, 2 * hidden},
        {QuantFormat::kFP8PerTensor, hidden},
        {QuantFormat::kDeepSeekFp8, hidden + 4 * ceil_div(128)},
        {QuantFormat::kMXFP8, hidden + ceil_div(32)},
        {QuantFormat::kNVFP4, ceil_div(2) + ceil_div(16)},
        {QuantFormat::kMXFP4, ceil_div(2) + ceil_div(32)},
    };
    for (const auto& [format, bytes] : formats) {
      params.dispatch_format = format;
      EXPECT_EQ(params.dispatch_bytes_per_token(), bytes) << quant_format_name(format);
    }
  }
}

}  // namespace
}  // namespace moe_ep
