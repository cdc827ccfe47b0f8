#include <moe_ep/config.hpp>

#include <limits>

#include "core/message.hpp"
#include "core/options.hpp"

namespace moe_ep {
namespace {

using detail::require;

// int32 counts everywhere in the protocol; rows and bytes are 64-bit.
constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();

void check_positive(const char* name, std::int64_t value) {
  require(value >= 1 && value <= kMaxSize, "MoEEpCommParams: ", name,
          " must be a positive 32-bit integer, got ", value);
}

// Offsets of a slice and sums of them must fit into 64 bits.
void check_slice(const std::string& type, std::int64_t world_size, const MoEEpCommParams& params,
                 std::int64_t extra_payload_bytes_per_token) {
  constexpr std::int64_t kMaxSlice = std::int64_t{1} << 61;
  const detail::RowSizes rows = detail::row_sizes(params, extra_payload_bytes_per_token);
  const std::int64_t num_rows = world_size * params.max_tokens_per_rank;
  require(num_rows <= kMaxSlice / (rows.dispatch + rows.combine), type,
          ": a workspace slice must take less than 2^61 bytes, got ", num_rows, " rows of ",
          rows.dispatch + rows.combine, " bytes");
}

template <class Config>
void check_common(const std::string& type, const Config& config, const BootstrapConfig& bootstrap,
                  const MoEEpCommParams& params) {
  require(
      config.extra_payload_bytes_per_token >= 0 && config.extra_payload_bytes_per_token <= kMaxSize,
      type, ": extra_payload_bytes_per_token must be a 32-bit integer of at least 0, got ",
      config.extra_payload_bytes_per_token);
  require(config.eplb_stats_num_experts >= 0 && config.eplb_stats_num_experts <= params.num_experts,
          type, ": eplb_stats_num_experts must lie in [0, num_experts = ", params.num_experts,
          "], got ", config.eplb_stats_num_experts);
  require(config.timeout_sec >= 1 && config.timeout_sec <= 86400, type,
          ": timeout_sec must lie in 1..86400, got ", config.timeout_sec);
  check_slice(type, bootstrap.world_size, params, config.extra_payload_bytes_per_token);
}

template <class Config>
void check_transports(const std::string& type, const Config& config) {
  require(!(config.lamport.value_or(false) && config.cft.value_or(false)), type,
          ": at most one of lamport and cft may be True, got both");
  require(!config.lamport_max_tokens || *config.lamport_max_tokens >= 1, type,
          ": lamport_max_tokens must be a positive integer or None, got ",
          config.lamport_max_tokens.value_or(0));
  require(config.cft_max_tokens_for_dispatch >= 0, type,
          ": cft_max_tokens_for_dispatch must be at least 0, got ",
          config.cft_max_tokens_for_dispatch);
  require(config.cft_max_tokens_for_combine >= 0, type,
          ": cft_max_tokens_for_combine must be at least 0, got ",
          config.cft_max_tokens_for_combine);
}

void check_divisible(const std::string& type, const BootstrapConfig& bootstrap,
                     const MoEEpCommParams& params) {
  require(params.num_experts % bootstrap.world_size == 0, type,
          ": num_experts must be divisible by world_size = ", bootstrap.world_size, ", got ",
          params.num_experts);
}

void check_max_sms(const std::string& type, const std::optional<int>& max_sms) {
  require(!max_sms || *max_sms >= 1, type, ": max_sms must be a positive integer or None, got ",
          max_sms.value_or(0));
}

}  // namespace

void BootstrapConfig::validate() const {
  require(world_size >= 1 && world_size <= kMaxRanks, "BootstrapConfig: world_size must lie in 1..",
          kMaxRanks, ", got ", world_size);
  require(rank >= 0 && rank < world_size,
          "BootstrapConfig: rank must lie in [0, world_size = ", world_size, "), got ", rank);
  require(!device || *device >= 0, "BootstrapConfig: device must be a CUDA ordinal or None, got ",
          device.value_or(0));
}

std::int64_t MoEEpCommParams::dispatch_bytes_per_token() const {
  return dispatch_format ? dispatch_bytes(*dispatch_format, hidden_size)
                         : hidden_size * itemsize(token_dtype());
}

void MoEEpCommParams::validate() const {
  check_positive("num_experts", num_experts);
  check_positive("top_k", top_k);
  check_positive("max_tokens_per_rank", max_tokens_per_rank);
  check_positive("hidden_size", hidden_size);
  require(top_k <= kMaxTopK, "MoEEpCommParams: top_k must be at most ", kMaxTopK, ", got ", top_k);
  require(top_k <= num_experts,
          "MoEEpCommParams: top_k must be at most num_experts = ", num_experts, ", got ", top_k);
  require(invalid_expert_id >= std::numeric_limits<std::int32_t>::min() &&
              invalid_expert_id <= kMaxSize &&
              (invalid_expert_id < 0 || invalid_expert_id >= num_experts),
          "MoEEpCommParams: invalid_expert_id must be an int32 outside [0, num_experts = ",
          num_experts, "), got ", invalid_expert_id);
  const DType type = token_dtype();
  require(type == kBFloat16 || type == kFloat16 || type == kFloat32,
          "MoEEpCommParams: dtype must be bfloat16, float16, float32 or None, got ",
          dtype_name(type));
  require(hidden_size * itemsize(type) <= kMaxSize && dispatch_bytes_per_token() <= kMaxSize,
          "MoEEpCommParams: a row must take less than 2^31 bytes, got hidden_size ", hidden_size);
}

void HostAlltoAllConfig::validate(const BootstrapConfig& bootstrap,
                                  const MoEEpCommParams& params) const {
  const std::string type = "HostAlltoAllConfig";
  check_divisible(type, bootstrap, params);
  check_common(type, *this, bootstrap, params);
  check_transports(type, *this);
  require(!num_threads || (*num_threads >= 1 && *num_threads <= 1024), type,
          ": num_threads must lie in 1..1024 or be None, got ", num_threads.value_or(0));
}

void NVLinkOneSidedConfig::validate(const BootstrapConfig& bootstrap,
                                    const MoEEpCommParams& params) const {
  const std::string type = "NVLinkOneSidedConfig";
  check_divisible(type, bootstrap, params);
  check_common(type, *this, bootstrap, params);
  check_transports(type, *this);
  check_max_sms(type, max_sms);
}

void CakeAlltoAllConfig::validate(const BootstrapConfig& bootstrap,
                                  const MoEEpCommParams& params) const {
  const std::string type = "CakeAlltoAllConfig";
  check_divisible(type, bootstrap, params);
  check_common(type, *this, bootstrap, params);
  check_max_sms(type, max_sms);
}

void NVLinkTwoSidedConfig::validate(const BootstrapConfig& bootstrap,
                                    const MoEEpCommParams& params) const {
  const std::string type = "NVLinkTwoSidedConfig";
  check_divisible(type, bootstrap, params);
  require(params.num_experts % 4 == 0, type, ": num_experts must be divisible by 4, got ",
          params.num_experts);
}

namespace detail {

namespace {

// What the two configs have in common.
template <class Config>
Options common_options(const char* class_name, const Platform& platform, const Config& config) {
  Options options;
  options.class_name = class_name;
  options.backend_name = Config::kBackendName;
  options.platform = &platform;
  options.extra_payload_bytes_per_token = config.extra_payload_bytes_per_token;
  options.eplb_stats_num_experts = config.eplb_stats_num_experts;
  options.enable_rank_mask = config.enable_rank_mask;
  options.use_low_precision_combine = config.use_low_precision_combine;
  options.comm = config.comm_backend;
  options.cft = config.cft;
  options.cft_max_tokens_for_dispatch = config.cft_max_tokens_for_dispatch;
  options.cft_max_tokens_for_combine = config.cft_max_tokens_for_combine;
  options.lamport = config.lamport;
  options.lamport_max_tokens = config.lamport_max_tokens;
  options.timeout_sec = config.timeout_sec;
  options.share_workspace = config.share_workspace;
  return options;
}

}  // namespace

Options make_options(const HostAlltoAllConfig& config) {
  Options options = common_options("HostAlltoAll", host_platform(), config);
  options.num_threads = config.num_threads;
  return options;
}

Options make_options(const NVLinkOneSidedConfig& config) {
  Options options = common_options("NVLinkOneSidedAlltoAll", cuda_platform(), config);
  options.enable_pdl = config.enable_pdl;
  options.max_sms = config.max_sms;
  options.require_nvlink = config.require_nvlink;
  return options;
}

RowSizes row_sizes(const MoEEpCommParams& params, std::int64_t extra_payload_bytes_per_token) {
  // Ids travel as int32; a weight takes at most 4 bytes.
  const std::int64_t ids_and_weights = params.top_k * (4 + 4);
  return {params.dispatch_bytes_per_token() + extra_payload_bytes_per_token + ids_and_weights,
          params.hidden_size * itemsize(params.token_dtype())};
}

}  // namespace detail
}  // namespace moe_ep
