#include "core/step.hpp"

#include <limits>

#include "core/message.hpp"

namespace moe_ep {

std::string describe(const TensorView& tensor) {
  std::string text = std::string(dtype_name(tensor.dtype)) + " [";
  for (int dim = 0; dim < tensor.ndim; ++dim) {
    text += (dim > 0 ? ", " : "") + std::to_string(tensor.size(dim));
  }
  text += "]";
  if (!tensor.is_contiguous()) {
    text += " with strides [";
    for (int dim = 0; dim < tensor.ndim; ++dim) {
      text += (dim > 0 ? ", " : "") + std::to_string(tensor.stride(dim));
    }
    text += "]";
  }
  if (tensor.device.type == Device::kCuda) {
    text += " on cuda:" + std::to_string(tensor.device.index);
  } else if (tensor.device.type != Device::kCpu) {
    text += " on device type " + std::to_string(tensor.device.type);
  }
  return text;
}

namespace detail {
namespace {

using protocol::kFirstRowBytes;

// FNV-1a over the names, each with its end: http://www.isthe.com/chongo/tech/comp/fnv/
std::uint32_t name_hash(const std::vector<NamedPayload>& payloads) {
  std::uint32_t hash = 2166136261u;
  const auto add = [&](char c) { hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u; };
  for (const NamedPayload& payload : payloads) {
    for (const char c : payload.name)
      add(c);
    add('\0');
  }
  return hash;
}

// True if the elements of one row lie side by side.
bool rows_contiguous(const TensorView& tensor) {
  std::int64_t expected = 1;
  for (int dim = tensor.ndim - 1; dim >= 1; --dim) {
    if (tensor.size(dim) != 1 && tensor.stride(dim) != expected) return false;
    expected *= tensor.size(dim);
  }
  return true;
}

std::int64_t row_stride_bytes(const TensorView& tensor) {
  return tensor.stride(0) * itemsize(tensor.dtype);
}

}  // namespace

std::int64_t check_payload(const std::string& operation, const std::string& name,
                           const TensorView& tensor, std::int64_t num_tokens, Device device) {
  require(tensor.ndim >= 1 && (num_tokens < 0 || tensor.size(0) == num_tokens), operation, ": ",
          name, " must be [", num_tokens < 0 ? std::string("n") : std::to_string(num_tokens),
          ", *] as topk_ids is, got ", tensor);
  require(tensor.device == device, operation, ": ", name, " must be a ", device, " tensor, got ",
          tensor);
  constexpr std::int64_t kMaxRow = std::numeric_limits<std::int32_t>::max();
  require(is_known(tensor.dtype), operation, ": ", name,
          " must have a dtype that the library knows, got DLPack code ", int{tensor.dtype.code},
          " with ", int{tensor.dtype.bits}, " bits");
  std::int64_t row_bytes = itemsize(tensor.dtype);
  for (int dim = 1; dim < tensor.ndim && row_bytes <= kMaxRow; ++dim) {
    // What exceeds the limit is not multiplied on: it could wrap into something small.
    row_bytes = tensor.size(dim) <= kMaxRow ? row_bytes * tensor.size(dim) : kMaxRow + 1;
  }
  require(row_bytes >= 1 && row_bytes <= kMaxRow, operation, ": ", name,
          " must have rows of 1 to 2^31 - 1 bytes, got ", tensor);
  require(tensor.size(0) == 0 || rows_contiguous(tensor), operation, ": ", name,
          " must be contiguous within a row, got ", tensor);
  return row_bytes;
}

void check_alignment(const std::string& operation, const std::string& name,
                     const TensorView& tensor) {
  const auto odd = reinterpret_cast<std::uintptr_t>(tensor.data) %
                   static_cast<std::uintptr_t>(itemsize(tensor.dtype));
  const bool is_number = tensor.dtype == kInt32 || tensor.dtype == kInt64;
  require(odd == 0 || (tensor.device.type == Device::kCpu && !is_number), operation, ": ", name,
          " must start at a multiple of its element's size, got ", tensor, " ", odd,
          " bytes after one");
}

void check_ids(const std::string& operation, const std::string& name, const TensorView& ids,
               std::int64_t top_k, Device device) {
  require((ids.dtype == kInt32 || ids.dtype == kInt64) && ids.ndim == 2 && ids.size(1) == top_k,
          operation, ": ", name, " must be int32 or int64 [n, ", top_k, "], got ", ids);
  check_payload(operation, name, ids, -1, device);
  check_alignment(operation, name, ids);
}

void check_eplb_stats(const std::string& operation, const TensorView& stats,
                      std::int64_t num_experts, Device device) {
  require(num_experts > 0, operation,
          ": eplb_local_stats need eplb_stats_num_experts > 0 at construction, got 0");
  require(stats.dtype == kInt32 && stats.ndim == 1 && stats.size(0) == num_experts &&
              stats.is_contiguous() && stats.device == device,
          operation, ": eplb_local_stats must be a contiguous ", device, " int32 [", num_experts,
          "], got ", stats);
  check_alignment(operation, "eplb_local_stats", stats);
}

void check_mask(const std::string& operation, const RankMask& mask, int rank, int num_ranks) {
  const RankMask outside = mask - RankMask::first(num_ranks);
  int first_outside = -1;
  outside.for_each([&](int member) { first_outside = first_outside < 0 ? member : first_outside; });
  require(first_outside < 0, operation, ": active_rank_mask must name ranks below ", num_ranks,
          ", got rank ", first_outside);
  require(mask.test(rank), operation, ": active_rank_mask must contain the own rank ", rank,
          ", got a mask without it");
}

TensorView like_rows(const TensorView& like, void* data,
                     std::initializer_list<std::int64_t> leading) {
  TensorView view;
  view.data = data;
  view.dtype = like.dtype;
  view.device = like.device;
  for (const std::int64_t extent : leading) {
    view.shape[static_cast<std::size_t>(view.ndim++)] = extent;
  }
  for (int dim = 1; dim < like.ndim; ++dim) {
    view.shape[static_cast<std::size_t>(view.ndim++)] = like.size(dim);
  }
  std::int64_t step = 1;
  for (int dim = view.ndim - 1; dim >= 0; --dim) {
    view.strides[static_cast<std::size_t>(dim)] = step;
    step *= view.size(dim);
  }
  return view;
}

void add_payload(protocol::DispatchParams& params, const TensorView& tensor,
                 std::int64_t row_bytes) {
  const int index = params.num_payloads++;
  params.payloads[index] = {static_cast<const std::byte*>(tensor.data), row_stride_bytes(tensor)};
  params.signature.fields[kFirstRowBytes + index] = static_cast<std::int32_t>(row_bytes);
  params.signature.fields[protocol::kNumPayloads] = params.num_payloads;
}

protocol::DispatchParams make_dispatch(const protocol::Workspace& workspace,
                                       const MoEEpCommParams& params, const Options& options,
                                       Device device, const RankMask& active,
                                       const DispatchInputs& inputs) {
  const std::string op = "dispatch";
  const TensorView& ids = inputs.topk_ids;
  check_ids(op, "topk_ids", ids, params.top_k, device);
  const std::int64_t num_tokens = ids.size(0);
  const std::int64_t tokens_per_rank =
      inputs.runtime_max_tokens_per_rank.value_or(params.max_tokens_per_rank);
  require(tokens_per_rank >= 1 && tokens_per_rank <= params.max_tokens_per_rank, op,
          ": runtime_max_tokens_per_rank must lie in 1..", params.max_tokens_per_rank,
          " (max_tokens_per_rank), got ", tokens_per_rank);
  require(num_tokens <= tokens_per_rank, op, ": a rank may send at most ", tokens_per_rank,
          inputs.runtime_max_tokens_per_rank ? " (runtime_max_tokens_per_rank)"
                                             : " (max_tokens_per_rank)",
          " tokens, got ", num_tokens);

  protocol::DispatchParams step;
  step.workspace = workspace;
  step.active = active;
  step.num_tokens = static_cast<std::int32_t>(num_tokens);
  step.tokens_per_rank = static_cast<std::int32_t>(tokens_per_rank);
  step.ownership = protocol::Ownership::make(static_cast<std::int32_t>(params.num_experts),
                                             workspace.layout.num_ranks);
  step.top_k = static_cast<std::int32_t>(params.top_k);
  step.topk_ids = static_cast<const std::byte*>(ids.data);
  step.topk_ids_stride = row_stride_bytes(ids);
  step.wide_ids = ids.dtype == kInt64;
  step.invalid_expert_id = static_cast<std::int32_t>(params.invalid_expert_id);

  require(inputs.hidden_states.ndim == 2, op, ": hidden_states must be [n, w], got ",
          inputs.hidden_states);
  std::int64_t reserved_bytes =
      check_payload(op, "hidden_states", inputs.hidden_states, num_tokens, device);
  add_payload(step, inputs.hidden_states, reserved_bytes);

  step.ids_payload = step.num_payloads;
  TensorView int32_ids = ids;
  int32_ids.dtype = kInt32;
  add_payload(step, int32_ids, 4 * params.top_k);

  std::int32_t presence = 0;
  if (inputs.topk_weights) {
    const TensorView& weights = *inputs.topk_weights;
    require(weights.ndim == 2 && weights.size(1) == params.top_k && itemsize(weights.dtype) <= 4,
            op, ": topk_weights must be [n, ", params.top_k,
            "] of a dtype of at most 4 bytes, got ", weights);
    add_payload(step, weights, check_payload(op, "topk_weights", weights, num_tokens, device));
    presence |= protocol::kHasWeights;
  }
  if (inputs.hidden_states_scale) {
    const TensorView& scale = *inputs.hidden_states_scale;
    const std::int64_t bytes = check_payload(op, "hidden_states_scale", scale, num_tokens, device);
    add_payload(step, scale, bytes);
    reserved_bytes += bytes;
    presence |= protocol::kHasScale;
  }
  require(inputs.extra_payloads.size() <= kMaxExtraPayloads, op,
          ": extra_payloads must be at most ", kMaxExtraPayloads, " tensors, got ",
          inputs.extra_payloads.size());
  for (const NamedPayload& extra : inputs.extra_payloads) {
    const std::int64_t bytes =
        check_payload(op, "extra_payloads['" + extra.name + "']", extra.tensor, num_tokens, device);
    add_payload(step, extra.tensor, bytes);
    reserved_bytes += bytes;
    presence += protocol::kExtraPayload;
  }
  const std::int64_t room =
      params.dispatch_bytes_per_token() + options.extra_payload_bytes_per_token;
  require(reserved_bytes <= room, op, ": hidden_states, scales and extra payloads may take ", room,
          " bytes a token (dispatch_bytes_per_token ", params.dispatch_bytes_per_token(),
          " + extra_payload_bytes_per_token ", options.extra_payload_bytes_per_token, "), got ",
          reserved_bytes);
  if (!inputs.extra_payloads.empty()) {
    presence |=
        static_cast<std::int32_t>(name_hash(inputs.extra_payloads) << protocol::kNameHashShift);
  }
  if (inputs.eplb_local_stats) {
    check_eplb_stats(op, *inputs.eplb_local_stats, options.eplb_stats_num_experts, device);
    step.eplb_local_stats = static_cast<const std::int32_t*>(inputs.eplb_local_stats->data);
    presence |= protocol::kHasEplbStats;
  }

  auto& fields = step.signature.fields;
  fields[protocol::kTokensPerRank] = step.tokens_per_rank;
  fields[protocol::kNumExperts] = step.ownership.num_experts;
  fields[protocol::kTopK] = step.top_k;
  fields[protocol::kTransport] = static_cast<std::int32_t>(Transport::kFence);
  fields[protocol::kPresence] = presence;
  step.placement = protocol::PayloadPlacement::make(workspace.layout, step.tokens_per_rank,
                                                    fields + kFirstRowBytes, step.num_payloads);
  step.timeout_ns = static_cast<std::uint64_t>(options.timeout_sec) * 1'000'000'000ull;
  return step;
}

MoEEpDispatchResult dispatch_result(const protocol::DispatchParams& step,
                                    const DispatchInputs& inputs) {
  const protocol::Workspace& workspace = step.workspace;
  const std::int64_t num_ranks = workspace.layout.num_ranks;
  const std::int64_t rows = num_ranks * step.tokens_per_rank;
  int payload = 0;
  const auto next_view = [&](const TensorView& like) {
    return like_rows(like, step.row(workspace.rank, payload++, 0, 0), {rows});
  };
  MoEEpDispatchResult result;
  result.tokens_per_rank = step.tokens_per_rank;
  result.hidden_states = next_view(inputs.hidden_states);
  TensorView ids = inputs.topk_ids;
  ids.dtype = kInt32;
  result.topk_ids = next_view(ids);
  if (inputs.topk_weights) result.topk_weights = next_view(*inputs.topk_weights);
  if (inputs.hidden_states_scale) {
    result.hidden_states_scale = next_view(*inputs.hidden_states_scale);
  }
  for (const NamedPayload& extra : inputs.extra_payloads) {
    result.extra_payloads.push_back({extra.name, next_view(extra.tensor)});
  }
  const Device device = inputs.hidden_states.device;
  result.recv_counts = TensorView(workspace.recv_counts(), kInt32, {num_ranks}, device);
  if (inputs.eplb_local_stats) {
    result.eplb_gathered_stats = TensorView(workspace.own() + workspace.layout.eplb, kInt32,
                                            {num_ranks, workspace.layout.eplb_experts}, device);
  }
  return result;
}

std::int64_t check_expert_output(const std::string& operation, const TensorView& rows,
                                 std::int64_t num_ranks, std::int64_t tokens_per_rank,
                                 std::int64_t hidden, Device device) {
  const std::int64_t total = num_ranks * tokens_per_rank;
  const bool flat = rows.ndim == 2 && rows.size(0) == total && rows.size(1) == hidden;
  const bool blocks = rows.ndim == 3 && rows.size(0) == num_ranks &&
                      rows.size(1) == tokens_per_rank && rows.size(2) == hidden;
  require(flat || blocks, operation, ": expert_output must be [", total, ", ", hidden, "] or [",
          num_ranks, ", ", tokens_per_rank, ", ", hidden, "], got ", rows);
  require(rows.device == device, operation, ": expert_output must be a ", device, " tensor, got ",
          rows);
  const int row_dim = rows.ndim - 2;
  require((hidden == 1 || rows.stride(rows.ndim - 1) == 1) &&
              (flat || num_ranks == 1 || rows.stride(0) == tokens_per_rank * rows.stride(1) ||
               tokens_per_rank == 1),
          operation,
          ": expert_output must be contiguous within a row, its rows evenly spaced, got ", rows);
  check_alignment(operation, "expert_output", rows);
  // With one row a block, the blocks' distance is the rows'.
  const int stride_dim = blocks && tokens_per_rank == 1 ? 0 : row_dim;
  return rows.stride(stride_dim) * itemsize(rows.dtype);
}

std::int32_t combine_format(DType dtype) {
  if (dtype == kBFloat16) return protocol::kCombineBf16;
  if (dtype == kFloat16) return protocol::kCombineFp16;
  if (dtype == kFloat32) return protocol::kCombineFp32;
  return -1;
}

void set_expert_output(const std::string& operation, protocol::CombineParams& params,
                       const TensorView& expert_output, std::int64_t stride) {
  const auto& layout = params.workspace.layout;
  const std::int64_t rows = static_cast<std::int64_t>(layout.num_ranks) * params.tokens_per_rank;
  const std::byte* region = params.workspace.own() + layout.combine;
  const auto* data = static_cast<const std::byte*>(expert_output.data);
  if (data == region && (stride == params.row_bytes || rows == 1)) {
    params.expert_output = nullptr;
    return;
  }
  const std::byte* region_end = region + rows * params.row_bytes;
  const std::byte* data_end = data + (rows - 1) * stride + params.row_bytes;
  require(data_end <= region || data >= region_end, operation,
          ": expert_output must be the whole combine input buffer or lie outside it, got a part of "
          "it");
  params.expert_output = data;
  params.expert_output_stride = stride;
}

void check_output_apart(const std::string& operation, const protocol::CombineParams& params,
                        const TensorView& output) {
  const auto& layout = params.workspace.layout;
  const std::int64_t rows = static_cast<std::int64_t>(layout.num_ranks) * params.tokens_per_rank;
  const std::byte* region = params.workspace.own() + layout.combine;
  const auto* data = static_cast<const std::byte*>(output.data);
  const std::int64_t bytes = output.numel() * itemsize(output.dtype);
  require(bytes == 0 || data + bytes <= region || data >= region + rows * params.row_bytes,
          operation,
          ": output must lie outside the combine input buffer, which peers still read, got a part "
          "of it");
}

void PayloadNames::remember(const DispatchInputs& inputs) {
  weights = inputs.topk_weights.has_value();
  scale = inputs.hidden_states_scale.has_value();
  extras.clear();
  for (const NamedPayload& extra : inputs.extra_payloads)
    extras.push_back(extra.name);
}

std::vector<std::string> PayloadNames::list() const {
  std::vector<std::string> names{"hidden_states", "topk_ids"};
  if (weights) names.push_back("topk_weights");
  if (scale) names.push_back("hidden_states_scale");
  for (const std::string& extra : extras)
    names.push_back("extra_payloads['" + extra + "']");
  return names;
}

}  // namespace detail
}  // namespace moe_ep
