#include <moe_ep/a2a.hpp>

#include <cstdlib>
#include <limits>

#include "core/a2a_slices.hpp"
#include "core/message.hpp"
#include "core/step.hpp"
#include "core/step_failure.hpp"
#include "protocol/block_scale.hpp"
#include "protocol/scale_layout.hpp"

namespace moe_ep {
namespace {

using detail::concat;
using detail::require;
using protocol::WorkspaceLayout;

constexpr std::int64_t kMetainfoMagic = 0x6d6f655f65706d31;  // "moe_epm1"
constexpr std::int64_t kSliceAlignment = 16;
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 48;  // of rows; times an itemsize, 64 bits

const char* backend_text(std::int64_t backend) {
  return backend == static_cast<std::int64_t>(A2aBackend::kCake) ? "cake" : "trtllm";
}

void check_sizes(const std::string& op, std::int64_t ep_size, std::int64_t max_num_tokens,
                 std::int64_t eplb_experts) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  require(ep_size >= 1 && ep_size <= kMaxRanks, op, ": ep_size must lie in 1..", kMaxRanks,
          ", got ", ep_size);
  require(max_num_tokens >= 1 && max_num_tokens <= kMax, op,
          ": max_num_tokens must be a positive 32-bit integer, got ", max_num_tokens);
  require(eplb_experts >= 0 && eplb_experts <= kMax, op,
          ": eplb_stats_num_experts must be a 32-bit integer of at least 0, got ", eplb_experts);
}

void check_workspace(const std::string& op, const TensorView& workspace, std::int64_t ep_rank,
                     std::int64_t ep_size) {
  require(workspace.dtype == kUInt8 && workspace.ndim == 2 && workspace.size(0) == ep_size &&
              workspace.stride(1) == 1,
          op, ": workspace must be uint8 [", ep_size, ", bytes] with contiguous rows, got ",
          workspace);
  const std::string reason = detail::platform_of(workspace.device).explain();
  require(reason.empty(), op, ": workspace must be a CPU tensor, because ", reason, ", got ",
          workspace);
  require(ep_rank >= 0 && ep_rank < ep_size, op, ": ep_rank must lie in [0, ep_size = ", ep_size,
          "), got ", ep_rank);
  require(reinterpret_cast<std::uintptr_t>(workspace.data) % kSliceAlignment == 0 &&
              workspace.stride(0) % kSliceAlignment == 0,
          op, ": slices of the workspace must start at multiples of ", kSliceAlignment,
          " bytes, got ", workspace);
}

// The rank's view of a workspace that moe_a2a_initialize has armed.
protocol::Workspace open_workspace(const std::string& op, const TensorView& workspace,
                                   const A2aMetainfo& metainfo, std::int64_t ep_rank,
                                   A2aBackend backend) {
  require(metainfo.magic == kMetainfoMagic, op,
          ": metainfo must come from moe_a2a_initialize, got another tensor");
  require(metainfo.backend == static_cast<std::int64_t>(backend), op,
          ": backend must be the one moe_a2a_initialize was called with, '",
          backend_text(metainfo.backend), "', got '",
          backend_text(static_cast<std::int64_t>(backend)), "'");
  check_sizes(op, metainfo.ep_size, metainfo.max_num_tokens, metainfo.eplb_stats_num_experts);
  check_workspace(op, workspace, ep_rank, metainfo.ep_size);
  require(workspace.size(1) == metainfo.slice_bytes, op, ": workspace must have slices of ",
          metainfo.slice_bytes, " bytes as moe_a2a_initialize saw it, got ", workspace);
  protocol::Workspace view;
  view.base = static_cast<std::byte*>(workspace.data);
  view.slice_stride = workspace.stride(0);
  view.rank = static_cast<std::int32_t>(ep_rank);
  view.layout = WorkspaceLayout::make(static_cast<std::int32_t>(metainfo.ep_size),
                                      static_cast<std::int32_t>(metainfo.max_num_tokens),
                                      static_cast<std::int32_t>(metainfo.eplb_stats_num_experts),
                                      metainfo.slice_bytes);
  return view;
}

std::int64_t check_tokens_per_rank(const std::string& op, std::int64_t tokens_per_rank,
                                   const A2aMetainfo& metainfo) {
  require(tokens_per_rank >= 1 && tokens_per_rank <= metainfo.max_num_tokens, op,
          ": runtime_max_tokens_per_rank must lie in 1..", metainfo.max_num_tokens,
          " (max_num_tokens), got ", tokens_per_rank);
  return tokens_per_rank;
}

RankMask check_active(const std::string& op, bool enable_rank_mask,
                      const std::optional<RankMask>& mask, std::int64_t ep_rank,
                      std::int64_t ep_size) {
  if (!mask) return RankMask::first(static_cast<int>(ep_size));
  require(enable_rank_mask, op, ": active_rank_mask needs enable_rank_mask=True, got False");
  detail::check_mask(op, *mask, static_cast<int>(ep_rank), static_cast<int>(ep_size));
  return *mask;
}

// Keeps the largest dispatch and combine regions of any step apart: a step must not grow into rows
// that an earlier one left for slow peers.
void reserve(const std::string& op, const WorkspaceLayout& layout, detail::A2aSlice& slice,
             std::int64_t dispatch_bytes, std::int64_t combine_bytes) {
  const std::int64_t dispatch = std::max(slice.max_dispatch_bytes, dispatch_bytes);
  const std::int64_t combine = std::max(slice.max_combine_bytes, combine_bytes);
  require(dispatch + combine <= layout.payload_room(), op, ": the workspace has ",
          layout.payload_room(), " bytes a slice for payloads, got steps that need ", dispatch,
          " for dispatch and ", combine, " for combine");
  slice.max_dispatch_bytes = dispatch;
  slice.max_combine_bytes = combine;
}

std::uint64_t timeout_from_environment() {
  constexpr std::uint64_t kSecond = 1'000'000'000ull;
  const char* text = std::getenv("MOE_EP_TIMEOUT_SEC");
  if (text == nullptr) return 300 * kSecond;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  require(end != text && *end == '\0' && value >= 1 && value <= 86400,
          "MOE_EP_TIMEOUT_SEC must be an integer in 1..86400, got '", text, "'");
  return static_cast<std::uint64_t>(value) * kSecond;
}

void raise_unless_ok(const std::string& op, const protocol::StepStatus& status, std::int64_t rank,
                     std::uint64_t timeout_ns) {
  if (status.ok()) return;
  detail::StepFailure{op, static_cast<int>(rank), status, timeout_ns, {}}.raise();
}

// The slice, unless an enqueued step on it has failed meanwhile.
detail::A2aSlice& sound_slice(const protocol::Workspace& workspace, Device device) {
  detail::A2aSlice& slice = detail::slice_of(workspace, device);
  if (const auto status = slice.backend->pending_failure()) {
    const bool in_dispatch = status->phase == Phase::kDispatch;
    raise_unless_ok(in_dispatch ? "moe_a2a_dispatch" : "moe_a2a_combine", *status, workspace.rank,
                    timeout_from_environment());
  }
  return slice;
}

}  // namespace

std::int64_t moe_a2a_get_workspace_size_per_rank(std::int64_t ep_size, std::int64_t max_num_tokens,
                                                 std::int64_t total_dispatch_payload_size_per_token,
                                                 std::int64_t combine_payload_size_per_token,
                                                 std::int64_t eplb_stats_num_experts,
                                                 A2aBackend /*backend*/) {
  const std::string op = "moe_a2a_get_workspace_size_per_rank";
  check_sizes(op, ep_size, max_num_tokens, eplb_stats_num_experts);
  require(total_dispatch_payload_size_per_token >= 0, op,
          ": total_dispatch_payload_size_per_token must be at least 0, got ",
          total_dispatch_payload_size_per_token);
  require(combine_payload_size_per_token >= 0, op,
          ": combine_payload_size_per_token must be at least 0, got ",
          combine_payload_size_per_token);
  const std::int64_t max_row = (std::int64_t{1} << 61) / (ep_size * max_num_tokens);
  require(
      total_dispatch_payload_size_per_token <= max_row && combine_payload_size_per_token <= max_row,
      op, ": payload sizes must be at most ", max_row, " for ", ep_size * max_num_tokens,
      " rows, got ", total_dispatch_payload_size_per_token, " and ",
      combine_payload_size_per_token);
  return WorkspaceLayout::required_bytes(
      static_cast<std::int32_t>(ep_size), static_cast<std::int32_t>(max_num_tokens),
      static_cast<std::int32_t>(eplb_stats_num_experts), total_dispatch_payload_size_per_token,
      combine_payload_size_per_token);
}

A2aMetainfo moe_a2a_initialize(const TensorView& workspace, std::int64_t ep_rank,
                               std::int64_t ep_size, std::int64_t max_num_tokens,
                               std::int64_t eplb_stats_num_experts, A2aBackend backend,
                               std::uintptr_t stream) {
  const std::string op = "moe_a2a_initialize";
  check_sizes(op, ep_size, max_num_tokens, eplb_stats_num_experts);
  check_workspace(op, workspace, ep_rank, ep_size);
  A2aMetainfo metainfo;
  metainfo.magic = kMetainfoMagic;
  metainfo.ep_size = ep_size;
  metainfo.max_num_tokens = max_num_tokens;
  metainfo.eplb_stats_num_experts = eplb_stats_num_experts;
  metainfo.slice_bytes = workspace.size(1);
  metainfo.backend = static_cast<std::int64_t>(backend);
  const protocol::Workspace view = open_workspace(op, workspace, metainfo, ep_rank, backend);
  metainfo.combine_offset = view.layout.combine;
  require(view.layout.payload_room() >= 0, op, ": workspace needs more than ", view.layout.combine,
          " bytes a slice, got ", workspace);
  detail::begin_slice(view, workspace.device).backend->reset(view, 0, stream);
  return metainfo;
}

A2aDispatchResult moe_a2a_dispatch(const A2aDispatchArgs& args) {
  const std::string op = "moe_a2a_dispatch";
  require(args.ep_size == args.metainfo.ep_size, op, ": ep_size must be ", args.metainfo.ep_size,
          " as moe_a2a_initialize was called with, got ", args.ep_size);
  require(args.top_k >= 1 && args.top_k <= kMaxTopK, op, ": top_k must lie in 1..", kMaxTopK,
          ", got ", args.top_k);
  require(args.num_experts >= 1 && args.num_experts <= std::numeric_limits<std::int32_t>::max(), op,
          ": num_experts must be a positive 32-bit integer, got ", args.num_experts);
  const protocol::Workspace workspace =
      open_workspace(op, args.workspace, args.metainfo, args.ep_rank, args.backend);
  const TensorView& ids = args.token_selected_experts;
  const Device device = args.workspace.device;
  detail::check_ids(op, "token_selected_experts", ids, args.top_k, device);
  const std::int64_t tokens_per_rank =
      check_tokens_per_rank(op, args.runtime_max_tokens_per_rank, args.metainfo);
  const std::int64_t num_tokens = ids.size(0);
  require(num_tokens <= tokens_per_rank, op, ": a rank may send at most ", tokens_per_rank,
          " (runtime_max_tokens_per_rank) tokens, got ", num_tokens);
  require(!args.input_payloads.empty() && args.input_payloads.size() <= kMaxPayloads, op,
          ": input_payloads must be 1 to ", kMaxPayloads, " tensors, got ",
          args.input_payloads.size());

  protocol::DispatchParams step;
  step.workspace = workspace;
  step.active =
      check_active(op, args.enable_rank_mask, args.active_rank_mask, args.ep_rank, args.ep_size);
  step.num_tokens = static_cast<std::int32_t>(num_tokens);
  step.tokens_per_rank = static_cast<std::int32_t>(tokens_per_rank);
  step.ownership = protocol::Ownership::make(static_cast<std::int32_t>(args.num_experts),
                                             static_cast<std::int32_t>(args.ep_size));
  step.top_k = static_cast<std::int32_t>(args.top_k);
  step.topk_ids = static_cast<const std::byte*>(ids.data);
  step.topk_ids_stride = ids.stride(0) * itemsize(ids.dtype);
  step.wide_ids = ids.dtype == kInt64;
  for (std::size_t index = 0; index < args.input_payloads.size(); ++index) {
    const TensorView& payload = args.input_payloads[index];
    require(payload.ndim < TensorView::kMaxDims, op, ": input_payloads[", index,
            "] must have at most ", TensorView::kMaxDims - 1, " dimensions, got ", payload);
    detail::add_payload(step, payload,
                        detail::check_payload(op, concat("input_payloads[", index, "]"), payload,
                                              num_tokens, device));
  }
  if (args.eplb_local_stats) {
    detail::check_eplb_stats(op, *args.eplb_local_stats, args.metainfo.eplb_stats_num_experts,
                             device);
    step.eplb_local_stats = static_cast<const std::int32_t*>(args.eplb_local_stats->data);
  }
  auto& fields = step.signature.fields;
  fields[protocol::kTokensPerRank] = step.tokens_per_rank;
  fields[protocol::kNumExperts] = step.ownership.num_experts;
  fields[protocol::kTopK] = step.top_k;
  fields[protocol::kTransport] = static_cast<std::int32_t>(Transport::kFence);
  fields[protocol::kPresence] = args.eplb_local_stats ? protocol::kHasEplbStats : 0;
  step.placement = protocol::PayloadPlacement::make(
      workspace.layout, step.tokens_per_rank, fields + protocol::kFirstRowBytes, step.num_payloads);
  step.timeout_ns = timeout_from_environment();
  detail::A2aSlice& slice = sound_slice(workspace, device);
  reserve(op, workspace.layout, slice,
          workspace.layout.combine + workspace.layout.payload_room() - step.placement.begin, 0);
  slice.num_tokens = step.num_tokens;
  raise_unless_ok(op, slice.backend->dispatch(step, args.stream), args.ep_rank, step.timeout_ns);

  A2aDispatchResult result;
  for (int payload = 0; payload < step.num_payloads; ++payload) {
    result.output_payloads.push_back(detail::like_rows(
        args.input_payloads[static_cast<std::size_t>(payload)],
        step.row(workspace.rank, payload, 0, 0), {args.ep_size, tokens_per_rank}));
  }
  result.combine_payload_offset = workspace.layout.combine;
  if (args.eplb_local_stats) {
    result.eplb_gathered_stats =
        TensorView(workspace.own() + workspace.layout.eplb, kInt32,
                   {args.ep_size, args.metainfo.eplb_stats_num_experts}, device);
  }
  return result;
}

namespace {

// Describes where sums go, from the output's and the scales' dtypes.
CombineOutput check_output(const std::string& op, const A2aCombineArgs& args, std::int64_t hidden) {
  const TensorView& output = args.output;
  CombineOutput to;
  to.rows = static_cast<std::byte*>(output.data);
  to.dtype = output.dtype;
  to.sf_layout = args.sf_layout;
  to.scalar_scale = static_cast<float>(args.output_scalar_scale);
  const bool packed = output.dtype == kUInt8 || output.dtype == kFloat4E2M1FNx2;
  const std::int64_t width = packed ? (hidden + 1) / 2 : hidden;
  const Device device = args.workspace.device;
  require(output.device == device && output.ndim == 2 && output.size(0) == args.local_num_tokens &&
              output.size(1) == width && output.is_contiguous(),
          op, ": output must be a contiguous ", device, " tensor [", args.local_num_tokens, ", ",
          width, "], got ", output);
  detail::check_alignment(op, "output", output);
  to.stride = width * itemsize(output.dtype);
  if (detail::combine_format(output.dtype) >= 0) {
    require(!args.output_scales, op, ": output_scales belong to a quantised output, got them with ",
            output);
    return to;
  }
  require(
      packed || output.dtype == kFloat8E4M3FN, op,
      ": output must be bfloat16, float16, float32, float8_e4m3fn or packed float4 (uint8), got ",
      output);
  require(args.output_scales.has_value(), op,
          ": a quantised output needs output_scales, got none with ", output);
  const TensorView& scales = *args.output_scales;
  const bool mx_scales = scales.dtype == kUInt8 || scales.dtype == kFloat8E8M0FNU;
  require(mx_scales || (packed && scales.dtype == kFloat8E4M3FN), op,
          ": output_scales must be uint8 (MX) or, for packed float4, float8_e4m3fn (NVFP4), got ",
          scales);
  to.format = !packed     ? OutputFormat::kMxfp8
              : mx_scales ? OutputFormat::kMxfp4
                          : OutputFormat::kNvfp4;
  const std::int64_t block = to.format == OutputFormat::kNvfp4 ? protocol::Nvfp4::kBlockElements
                                                               : protocol::Mxfp8::kBlockElements;
  const std::int64_t cols = (hidden + block - 1) / block;
  const std::int64_t bytes =
      protocol::scale_matrix_bytes(args.sf_layout, args.local_num_tokens, cols);
  require(scales.device == device && scales.is_contiguous() && scales.numel() == bytes, op,
          ": output_scales must be a contiguous ", device, " tensor of ", bytes, " scales (",
          args.local_num_tokens, " x ", cols, ", padded for the layout), got ", scales);
  to.scales = static_cast<std::uint8_t*>(scales.data);
  return to;
}

}  // namespace

void moe_a2a_combine(const A2aCombineArgs& args) {
  const std::string op = "moe_a2a_combine";
  require(args.ep_size == args.metainfo.ep_size, op, ": ep_size must be ", args.metainfo.ep_size,
          " as moe_a2a_initialize was called with, got ", args.ep_size);
  const protocol::Workspace workspace =
      open_workspace(op, args.workspace, args.metainfo, args.ep_rank, args.backend);
  const std::int64_t tokens_per_rank =
      check_tokens_per_rank(op, args.runtime_max_tokens_per_rank, args.metainfo);
  require(args.local_num_tokens >= 0 && args.local_num_tokens <= tokens_per_rank, op,
          ": local_num_tokens must lie in 0..", tokens_per_rank, ", got ", args.local_num_tokens);
  const Device device = args.workspace.device;
  detail::A2aSlice& slice = sound_slice(workspace, device);
  require(args.local_num_tokens == slice.num_tokens, op,
          ": local_num_tokens must be what the last dispatch sent, ", slice.num_tokens, ", got ",
          args.local_num_tokens);
  require(args.combine_payload_offset == workspace.layout.combine, op,
          ": combine_payload_offset must be ", workspace.layout.combine,
          " as moe_a2a_dispatch returned it, got ", args.combine_payload_offset);
  const std::int32_t format = detail::combine_format(args.payload.dtype);
  require(format >= 0 && args.payload.ndim >= 2, op,
          ": payload must be bfloat16, float16 or float32 [R, T, H] or [R*T, H], got ",
          args.payload);
  const std::int64_t hidden = args.payload.size(args.payload.ndim - 1);
  require(hidden >= 1 &&
              hidden * itemsize(args.payload.dtype) <= std::numeric_limits<std::int32_t>::max(),
          op, ": payload must have rows of 1 to 2^31 - 1 bytes, got ", args.payload);
  const std::int64_t stride =
      detail::check_expert_output(op, args.payload, args.ep_size, tokens_per_rank, hidden, device);
  const CombineOutput output = check_output(op, args, hidden);

  protocol::CombineParams step;
  step.workspace = workspace;
  step.active =
      check_active(op, args.enable_rank_mask, args.active_rank_mask, args.ep_rank, args.ep_size);
  step.num_tokens = static_cast<std::int32_t>(args.local_num_tokens);
  step.tokens_per_rank = static_cast<std::int32_t>(tokens_per_rank);
  step.elements = static_cast<std::int32_t>(hidden);
  step.row_bytes = hidden * itemsize(args.payload.dtype);
  step.format = format | (args.use_low_precision ? protocol::kCombineFp8Wire : 0);
  step.timeout_ns = timeout_from_environment();
  detail::set_expert_output(op, step, args.payload, stride);
  detail::check_output_apart(op, step, args.output);
  require(!args.payload_in_workspace || step.expert_output == nullptr, op,
          ": with payload_in_workspace=True payload must be the workspace view at "
          "combine_payload_offset, got another tensor");
  reserve(op, workspace.layout, slice, 0,
          protocol::align_up(args.ep_size * tokens_per_rank * step.row_bytes));
  raise_unless_ok(op, slice.backend->combine(step, output, args.stream), args.ep_rank,
                  step.timeout_ns);
}

void moe_a2a_sanitize_expert_ids(const TensorView& expert_ids, const TensorView& workspace,
                                 const A2aMetainfo& metainfo, std::int64_t ep_rank,
                                 std::int64_t invalid_expert_id, A2aBackend backend,
                                 std::uintptr_t stream) {
  const std::string op = "moe_a2a_sanitize_expert_ids";
  const protocol::Workspace view = open_workspace(op, workspace, metainfo, ep_rank, backend);
  require(expert_ids.dtype == kInt32 && expert_ids.ndim == 3 &&
              expert_ids.size(0) == metainfo.ep_size && expert_ids.is_contiguous() &&
              expert_ids.device == workspace.device,
          op, ": expert_ids must be a contiguous ", workspace.device, " int32 [", metainfo.ep_size,
          ", T, top_k], got ", expert_ids);
  detail::check_alignment(op, "expert_ids", expert_ids);
  require(invalid_expert_id >= std::numeric_limits<std::int32_t>::min() &&
              invalid_expert_id <= std::numeric_limits<std::int32_t>::max(),
          op, ": invalid_expert_id must be an int32, got ", invalid_expert_id);
  const std::int64_t tokens_per_rank = check_tokens_per_rank(op, expert_ids.size(1), metainfo);
  sound_slice(view, workspace.device)
      .backend->sanitize(view, static_cast<std::int32_t*>(expert_ids.data),
                         static_cast<std::int32_t>(tokens_per_rank),
                         static_cast<std::int32_t>(expert_ids.size(2)),
                         static_cast<std::int32_t>(invalid_expert_id), stream);
}

TensorView moe_a2a_wrap_payload_tensor_in_workspace(const TensorView& workspace,
                                                    const std::vector<std::int64_t>& leading_shape,
                                                    std::int64_t slice_start,
                                                    std::int64_t slice_end, DType dtype) {
  const std::string op = "moe_a2a_wrap_payload_tensor_in_workspace";
  require(workspace.dtype == kUInt8 && workspace.is_contiguous(), op,
          ": workspace must be a contiguous uint8 tensor, got ", workspace);
  require(slice_start >= 0 && slice_start <= slice_end && slice_end <= workspace.numel(), op,
          ": slice_start..slice_end must lie in the workspace's ", workspace.numel(),
          " bytes, got ", slice_start, "..", slice_end);
  require(leading_shape.size() + 1 <= TensorView::kMaxDims, op,
          ": leading_shape must have at most ", TensorView::kMaxDims - 1, " dimensions, got ",
          leading_shape.size());
  const std::int64_t bytes = slice_end - slice_start;
  std::int64_t rows = 1;
  for (const std::int64_t extent : leading_shape) {
    require(extent >= 1 && extent <= kMaxExtent, op, ": leading_shape must lie in 1..", kMaxExtent,
            ", got ", extent);
    require(rows <= kMaxExtent / extent, op, ": leading_shape must have at most ", kMaxExtent,
            " rows, got more");
    rows *= extent;
  }
  require(bytes % (rows * itemsize(dtype)) == 0, op, ": ", bytes, " bytes must divide into ", rows,
          " rows of ", dtype_name(dtype));
  TensorView view;
  view.data = static_cast<std::byte*>(workspace.data) + slice_start;
  view.dtype = dtype;
  view.device = workspace.device;
  for (const std::int64_t extent : leading_shape) {
    view.shape[static_cast<std::size_t>(view.ndim++)] = extent;
  }
  view.shape[static_cast<std::size_t>(view.ndim++)] = bytes / rows / itemsize(dtype);
  std::int64_t stride = 1;
  for (int dim = view.ndim - 1; dim >= 0; --dim) {
    view.strides[static_cast<std::size_t>(dim)] = stride;
    stride *= view.size(dim);
  }
  return view;
}

RankMask moe_a2a_active_rank_mask(const std::vector<int>& ranks, std::int64_t ep_size) {
  require(ep_size >= 1 && ep_size <= kMaxRanks, "moe_a2a_active_rank_mask: ep_size must lie in 1..",
          kMaxRanks, ", got ", ep_size);
  RankMask mask;
  for (const int rank : ranks) {
    require(rank >= 0 && rank < ep_size, "moe_a2a_active_rank_mask: ranks must lie in [0, ",
            ep_size, "), got ", rank);
    mask.set(rank);
  }
  return mask;
}

}  // namespace moe_ep
