// The stateless family. Tensors are made by Python: results come back as (address, shape, dtype).

#include <moe_ep/a2a.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "parts.hpp"
#include "tensor.hpp"

namespace moe_ep::bindings {
namespace {

using Fields = std::array<std::int64_t, A2aMetainfo::kNumFields>;

Fields to_fields(const A2aMetainfo& metainfo) {
  Fields fields{};
  std::size_t index = 0;
#define MOE_EP_STORE(name) fields[index++] = metainfo.name;
  MOE_EP_FOR_EACH_METAINFO(MOE_EP_STORE)
#undef MOE_EP_STORE
  return fields;
}

A2aMetainfo to_metainfo(nb::handle object, const char* operation) {
  const TensorView view = view_of(object, operation, "metainfo");
  if (view.dtype != kInt64 || view.ndim != 1 || view.size(0) != A2aMetainfo::kNumFields ||
      !view.is_contiguous() || view.device.type != Device::kCpu) {
    throw std::invalid_argument(std::string(operation) +
                                ": metainfo must be the CPU int64 tensor that moe_a2a_initialize "
                                "returned, got " +
                                describe(view));
  }
  const auto* fields = static_cast<const std::int64_t*>(view.data);
  A2aMetainfo metainfo;
#define MOE_EP_LOAD(name) metainfo.name = *fields++;
  MOE_EP_FOR_EACH_METAINFO(MOE_EP_LOAD)
#undef MOE_EP_LOAD
  return metainfo;
}

A2aBackend to_backend(const std::string& name, const char* operation) {
  if (name == "trtllm") return A2aBackend::kTrtllm;
  if (name == "cake") return A2aBackend::kCake;
  throw std::invalid_argument(std::string(operation) +
                              ": backend must be 'trtllm' or 'cake', got '" + name + "'");
}

// (offset from `base`, shape, (code, bits, lanes))
nb::tuple describe_view(const TensorView& view, const void* base) {
  nb::list shape;
  for (int dim = 0; dim < view.ndim; ++dim)
    shape.append(view.size(dim));
  return nb::make_tuple(static_cast<const char*>(view.data) - static_cast<const char*>(base),
                        nb::tuple(shape),
                        nb::make_tuple(view.dtype.code, view.dtype.bits, view.dtype.lanes));
}

}  // namespace

void bind_a2a(nb::module_& module) {
  using namespace nb::literals;

  module.def(
      "a2a_workspace_size",
      [](std::int64_t ep_size, std::int64_t max_num_tokens, std::int64_t dispatch_bytes,
         std::int64_t combine_bytes, std::int64_t eplb_experts, const std::string& backend) {
        return moe_a2a_get_workspace_size_per_rank(
            ep_size, max_num_tokens, dispatch_bytes, combine_bytes, eplb_experts,
            to_backend(backend, "moe_a2a_get_workspace_size_per_rank"));
      },
      "ep_size"_a, "max_num_tokens"_a, "total_dispatch_payload_size_per_token"_a,
      "combine_payload_size_per_token"_a, "eplb_stats_num_experts"_a, "backend"_a);

  module.def(
      "a2a_initialize",
      [](nb::handle workspace, std::int64_t ep_rank, std::int64_t ep_size,
         std::int64_t max_num_tokens, std::int64_t eplb_experts, const std::string& backend) {
        const char* op = "moe_a2a_initialize";
        const TensorView view = view_of(workspace, op, "workspace");
        const auto stream = current_stream_of(workspace, view.device);
        const A2aBackend kernels = to_backend(backend, op);
        const nb::gil_scoped_release release;
        return to_fields(moe_a2a_initialize(view, ep_rank, ep_size, max_num_tokens, eplb_experts,
                                            kernels, stream));
      },
      "workspace"_a, "ep_rank"_a, "ep_size"_a, "max_num_tokens"_a, "eplb_stats_num_experts"_a,
      "backend"_a);

  module.def(
      "a2a_dispatch",
      [](nb::handle ids, const std::vector<nb::object>& payloads, nb::handle workspace,
         nb::handle metainfo, std::int64_t tokens_per_rank, std::int64_t ep_rank,
         std::int64_t ep_size, std::int64_t top_k, std::int64_t num_experts,
         nb::handle eplb_local_stats, bool enable_rank_mask, nb::handle mask,
         const std::string& backend) {
        const char* op = "moe_a2a_dispatch";
        A2aDispatchArgs args;
        args.token_selected_experts = view_of(ids, op, "token_selected_experts");
        for (const nb::object& payload : payloads) {
          args.input_payloads.push_back(view_of(payload, op, "input_payloads"));
        }
        args.workspace = view_of(workspace, op, "workspace");
        args.metainfo = to_metainfo(metainfo, op);
        args.runtime_max_tokens_per_rank = tokens_per_rank;
        args.ep_rank = ep_rank;
        args.ep_size = ep_size;
        args.top_k = top_k;
        args.num_experts = num_experts;
        args.eplb_local_stats = optional_view_of(eplb_local_stats, op, "eplb_local_stats");
        args.enable_rank_mask = enable_rank_mask;
        args.active_rank_mask = optional_mask_of(mask, op, static_cast<int>(ep_size));
        args.backend = to_backend(backend, op);
        args.stream = current_stream_of(workspace, args.workspace.device);
        A2aDispatchResult result;
        {
          const nb::gil_scoped_release release;
          result = moe_a2a_dispatch(args);
        }
        nb::list views;
        for (const TensorView& view : result.output_payloads) {
          views.append(describe_view(view, args.workspace.data));
        }
        nb::object stats = nb::none();
        if (result.eplb_gathered_stats) {
          stats = describe_view(*result.eplb_gathered_stats, args.workspace.data);
        }
        return nb::make_tuple(views, result.combine_payload_offset, stats);
      },
      "token_selected_experts"_a, "input_payloads"_a, "workspace"_a, "metainfo"_a,
      "runtime_max_tokens_per_rank"_a, "ep_rank"_a, "ep_size"_a, "top_k"_a, "num_experts"_a,
      "eplb_local_stats"_a.none(), "enable_rank_mask"_a, "active_rank_mask"_a.none(), "backend"_a,
      nb::sig("def a2a_dispatch(token_selected_experts: object, input_payloads: Sequence[object], "
              "workspace: object, metainfo: object, runtime_max_tokens_per_rank: int, ep_rank: "
              "int, ep_size: int, top_k: int, num_experts: int, eplb_local_stats: object | None, "
              "enable_rank_mask: bool, active_rank_mask: object | None, backend: str) -> "
              "tuple[list[tuple[int, tuple[int, ...], tuple[int, int, int]]], int, tuple[int, "
              "tuple[int, ...], tuple[int, int, int]] | None]"));

  module.def(
      "a2a_combine",
      [](nb::handle payload, std::int64_t local_num_tokens, nb::handle workspace,
         nb::handle metainfo, std::int64_t tokens_per_rank, std::int64_t ep_rank,
         std::int64_t ep_size, std::int64_t top_k, std::int64_t combine_payload_offset,
         bool payload_in_workspace, nb::handle output, nb::handle output_scales,
         double output_scalar_scale, int sf_layout, bool use_low_precision, bool enable_rank_mask,
         nb::handle mask, const std::string& backend) {
        const char* op = "moe_a2a_combine";
        A2aCombineArgs args;
        args.payload = view_of(payload, op, "payload");
        args.local_num_tokens = local_num_tokens;
        args.workspace = view_of(workspace, op, "workspace");
        args.metainfo = to_metainfo(metainfo, op);
        args.runtime_max_tokens_per_rank = tokens_per_rank;
        args.ep_rank = ep_rank;
        args.ep_size = ep_size;
        args.top_k = top_k;
        args.combine_payload_offset = combine_payload_offset;
        args.payload_in_workspace = payload_in_workspace;
        args.output = view_of(output, op, "output");
        args.output_scales = optional_view_of(output_scales, op, "output_scales");
        args.output_scalar_scale = output_scalar_scale;
        args.sf_layout = static_cast<SfLayout>(sf_layout);
        args.use_low_precision = use_low_precision;
        args.enable_rank_mask = enable_rank_mask;
        args.active_rank_mask = optional_mask_of(mask, op, static_cast<int>(ep_size));
        args.backend = to_backend(backend, op);
        args.stream = current_stream_of(workspace, args.workspace.device);
        const nb::gil_scoped_release release;
        moe_a2a_combine(args);
      },
      "payload"_a, "local_num_tokens"_a, "workspace"_a, "metainfo"_a,
      "runtime_max_tokens_per_rank"_a, "ep_rank"_a, "ep_size"_a, "top_k"_a,
      "combine_payload_offset"_a, "payload_in_workspace"_a, "output"_a, "output_scales"_a.none(),
      "output_scalar_scale"_a, "sf_layout"_a, "use_low_precision"_a, "enable_rank_mask"_a,
      "active_rank_mask"_a.none(), "backend"_a);

  module.def(
      "a2a_sanitize_expert_ids",
      [](nb::handle expert_ids, nb::handle workspace, nb::handle metainfo, std::int64_t ep_rank,
         std::int64_t invalid_expert_id, const std::string& backend) {
        const char* op = "moe_a2a_sanitize_expert_ids";
        const TensorView view = view_of(workspace, op, "workspace");
        moe_a2a_sanitize_expert_ids(
            view_of(expert_ids, op, "expert_ids"), view, to_metainfo(metainfo, op), ep_rank,
            invalid_expert_id, to_backend(backend, op), current_stream_of(workspace, view.device));
      },
      "expert_ids"_a, "workspace"_a, "metainfo"_a, "ep_rank"_a, "invalid_expert_id"_a, "backend"_a);

  module.def(
      "active_rank_mask",
      [](const std::vector<int>& ranks, std::int64_t ep_size) {
        const RankMask mask = moe_a2a_active_rank_mask(ranks, ep_size);
        return std::vector<std::uint64_t>(mask.words, mask.words + kRankMaskWords);
      },
      "ranks"_a, "ep_size"_a, "The words of a rank mask.");
}

}  // namespace moe_ep::bindings
