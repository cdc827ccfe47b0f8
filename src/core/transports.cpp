#include "core/transports.hpp"

#include <algorithm>

#include "core/log.hpp"
#include "core/message.hpp"
#include "protocol/transport/counted.hpp"
#include "protocol/transport/lamport_dispatch.hpp"

namespace moe_ep::detail {
namespace {

using protocol::DataWords;
using protocol::LamportLayout;
using protocol::LamportSpec;

// What steps of params without an obstacle carry as hidden_states.
DataWords data_words(const MoEEpCommParams& params) {
  switch (params.dispatch_format.value_or(QuantFormat::kBF16)) {
    case QuantFormat::kDeepSeekFp8:
    case QuantFormat::kMXFP8:
      return DataWords::kFp8;
    case QuantFormat::kNVFP4:
      return DataWords::kFp4;
    default:
      return DataWords::kBf16;
  }
}

bool is_data_dtype(DataWords words, DType dtype) {
  switch (words) {
    case DataWords::kBf16:
      return dtype == kBFloat16;
    case DataWords::kFp8:
      return dtype == kFloat8E4M3FN;
    default:  // packed pairs have no dtype of their own in many frameworks
      return dtype == kFloat4E2M1FNx2 || dtype == kUInt8;
  }
}

std::int64_t value_bytes(DataWords words, std::int64_t hidden) {
  return words == DataWords::kBf16  ? 2 * hidden
         : words == DataWords::kFp8 ? hidden
                                    : (hidden + 1) / 2;
}

LamportSpec lamport_spec(int num_ranks, const MoEEpCommParams& params, const Options& options) {
  LamportSpec spec;
  const bool wanted = options.lamport.value_or(!options.cft.value_or(false));
  if (!wanted || !lamport_obstacle(params, options).empty()) return spec;
  spec.words = data_words(params);
  spec.top_k = static_cast<std::int32_t>(params.top_k);
  spec.value_bytes = value_bytes(spec.words, params.hidden_size);
  spec.scale_bytes =
      params.dispatch_bytes_per_token() + options.extra_payload_bytes_per_token - spec.value_bytes;
  spec.combine_bytes = params.hidden_size * itemsize(kBFloat16);
  const LamportLayout layout = LamportLayout::make(num_ranks, spec, 0);
  const std::int64_t token_bytes = num_ranks * protocol::kLamportBanks *
                                   (layout.tag_stride + layout.row_stride + layout.combine_stride);
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;  // offsets stay within 64 bits
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;   // and numbers of rows within 32
  // Who asks for Lamport gets one token at least; who does not, what is fast.
  const std::int64_t affordable =
      options.lamport.value_or(false)
          ? std::max(kLamportBudgetBytes / token_bytes, std::int64_t{1})
          : std::min(kLamportBudgetBytes / token_bytes, options.platform->default_lamport_tokens());
  spec.max_tokens = static_cast<std::int32_t>(
      std::min({options.lamport_max_tokens.value_or(affordable), params.max_tokens_per_rank,
                kMaxBytes / token_bytes, kMaxRows / num_ranks}));
  return spec;
}

}  // namespace

std::string lamport_obstacle(const MoEEpCommParams& params, const Options& options) {
  if (!options.platform->has(Transport::kLamport)) {
    return concat("backend '", options.backend_name, "' has no Lamport steps in this version");
  }
  if (params.token_dtype() != kBFloat16) {
    return concat("combine must be of BFloat16, got ", dtype_name(params.token_dtype()));
  }
  if (options.use_low_precision_combine) {
    return "combine must be exact, got use_low_precision_combine=True";
  }
  switch (params.dispatch_format.value_or(QuantFormat::kBF16)) {
    case QuantFormat::kBF16:
    case QuantFormat::kDeepSeekFp8:
    case QuantFormat::kMXFP8:
    case QuantFormat::kNVFP4:
      return {};
    default:
      return concat("dispatch_format must be BF16, DeepSeekFp8, MXFP8 or NVFP4, got ",
                    quant_format_name(*params.dispatch_format));
  }
}

protocol::WorkspaceLayout make_layout(int num_ranks, const MoEEpCommParams& params,
                                      const Options& options) {
  using protocol::WorkspaceLayout;
  const RowSizes rows = row_sizes(params, options.extra_payload_bytes_per_token);
  const auto max_tokens = static_cast<std::int32_t>(params.max_tokens_per_rank);
  const auto eplb = static_cast<std::int32_t>(options.eplb_stats_num_experts);
  protocol::TransportRegions regions;
  regions.lamport = lamport_spec(num_ranks, params, options);
  const bool counted = options.cft.value_or(false) && options.platform->has(Transport::kCounted);
  if (counted) regions.counted_row_bytes = rows.combine;
  return WorkspaceLayout::make(
      num_ranks, max_tokens, eplb,
      WorkspaceLayout::required_bytes(num_ranks, max_tokens, eplb, rows.dispatch, rows.combine,
                                      regions),
      regions);
}

std::string layout_key(const protocol::WorkspaceLayout& layout) {
  const LamportLayout& lamport = layout.lamport;
  return concat(layout.num_ranks, '/', layout.max_tokens, '/', layout.eplb_experts, '/',
                layout.slice_bytes, '/', lamport.max_tokens, '/', lamport.tag_stride, '/',
                lamport.row_stride, '/', lamport.combine_stride, '/',
                static_cast<int>(lamport.words), '/', layout.counted);
}

void warn_of_obstacles(const MoEEpCommParams& params, const Options& options) {
  if (options.lamport.value_or(false)) {
    const std::string obstacle = lamport_obstacle(params, options);
    if (!obstacle.empty()) {
      log_warning(options.class_name + ": lamport=True, but " + obstacle +
                  "; no step takes the Lamport transport");
    }
  }
  if (options.cft.value_or(false) && !options.platform->has(Transport::kCounted)) {
    log_warning(options.class_name + ": cft=True, but backend '" + options.backend_name +
                "' has no counted writes in this version; steps take the fence transport");
  } else if (options.cft.value_or(false) &&
             (params.hidden_size * itemsize(params.token_dtype()) % 16 != 0 ||
              params.top_k % 4 != 0)) {
    log_warning(concat(options.class_name,
                       ": cft=True, but rows must be multiples of 16 bytes (ids too: top_k a "
                       "multiple of 4), got hidden_size ",
                       params.hidden_size, " and top_k ", params.top_k,
                       "; steps take the fence transport"));
  }
}

Transport choose_transport(const MoEEpCommParams& params, const protocol::DispatchParams& step,
                           const DispatchInputs& inputs) {
  const bool bare = !inputs.eplb_local_stats && inputs.extra_payloads.empty();
  const LamportLayout& lamport = step.workspace.layout.lamport;
  if (lamport.enabled() && bare && is_data_dtype(lamport.words, inputs.hidden_states.dtype) &&
      step.row_bytes(0) <= value_bytes(lamport.words, params.hidden_size) &&
      protocol::fits_lamport(step)) {
    return Transport::kLamport;
  }
  const std::int64_t combine_row = params.hidden_size * itemsize(params.token_dtype());
  return protocol::fits_counted(step, combine_row) ? Transport::kCounted : Transport::kFence;
}

}  // namespace moe_ep::detail
