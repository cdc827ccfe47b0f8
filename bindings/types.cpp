// The configuration structs. The Python frontend's dataclasses are copied into these field by
// field.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include <moe_ep/config.hpp>
#include <moe_ep/plan.hpp>

#include "comm.hpp"
#include "parts.hpp"

namespace moe_ep::bindings {
namespace {

// (DLPack code, bits, lanes)
using DTypeTuple = std::tuple<int, int, int>;

DType to_dtype(const DTypeTuple& tuple) {
  return {static_cast<std::uint8_t>(std::get<0>(tuple)),
          static_cast<std::uint8_t>(std::get<1>(tuple)),
          static_cast<std::uint16_t>(std::get<2>(tuple))};
}

std::optional<QuantFormat> to_format(const std::string& name) {
#define MOE_EP_RETURN(format) \
  if (name == #format) return QuantFormat::k##format;
  MOE_EP_FOR_EACH_QUANT_FORMAT(MOE_EP_RETURN)
#undef MOE_EP_RETURN
  throw std::invalid_argument("QuantFormat: unknown name, got " + name);
}

// The comm backend of any config: set from a Python object and its group.
template <class Config, class Class>
void bind_comm_backend(Class& bound) {
  bound.def(
      "set_comm_backend",
      [](Config& config, nb::object backend, nb::object group) {
        config.comm_backend = wrap_comm(std::move(backend), std::move(group));
      },
      nb::arg("backend").none(), nb::arg("group").none());
}

}  // namespace

void bind_types(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<BootstrapConfig>(module, "BootstrapConfig")
      .def(nb::init<>())
      .def_rw("world_size", &BootstrapConfig::world_size)
      .def_rw("rank", &BootstrapConfig::rank)
      .def_rw("stream", &BootstrapConfig::stream)
      .def_rw("device", &BootstrapConfig::device)
      .def("validate", &BootstrapConfig::validate);

  nb::class_<MoEEpCommParams>(module, "MoEEpCommParams")
      .def(nb::init<>())
      .def_rw("num_experts", &MoEEpCommParams::num_experts)
      .def_rw("top_k", &MoEEpCommParams::top_k)
      .def_rw("max_tokens_per_rank", &MoEEpCommParams::max_tokens_per_rank)
      .def_rw("hidden_size", &MoEEpCommParams::hidden_size)
      .def_rw("invalid_expert_id", &MoEEpCommParams::invalid_expert_id)
      .def(
          "set_dtype",
          [](MoEEpCommParams& params, const DTypeTuple& dtype) { params.dtype = to_dtype(dtype); },
          "dtype"_a)
      .def(
          "set_dispatch_format",
          [](MoEEpCommParams& params, const std::string& name) {
            params.dispatch_format = to_format(name);
          },
          "name"_a)
      .def_prop_ro("dispatch_bytes_per_token", &MoEEpCommParams::dispatch_bytes_per_token)
      .def("validate", &MoEEpCommParams::validate);

#define MOE_EP_RW(Config, field) .def_rw(#field, &Config::field)
  auto host =
      nb::class_<HostAlltoAllConfig>(module, "HostAlltoAllConfig")
          .def(nb::init<>())
      // clang-format off
      MOE_EP_RW(HostAlltoAllConfig, extra_payload_bytes_per_token)
      MOE_EP_RW(HostAlltoAllConfig, eplb_stats_num_experts)
      MOE_EP_RW(HostAlltoAllConfig, enable_rank_mask)
      MOE_EP_RW(HostAlltoAllConfig, use_low_precision_combine)
      MOE_EP_RW(HostAlltoAllConfig, cft)
      MOE_EP_RW(HostAlltoAllConfig, cft_max_tokens_for_dispatch)
      MOE_EP_RW(HostAlltoAllConfig, cft_max_tokens_for_combine)
      MOE_EP_RW(HostAlltoAllConfig, lamport)
      MOE_EP_RW(HostAlltoAllConfig, lamport_max_tokens)
      MOE_EP_RW(HostAlltoAllConfig, timeout_sec)
      MOE_EP_RW(HostAlltoAllConfig, num_threads)
      MOE_EP_RW(HostAlltoAllConfig, share_workspace);
  bind_comm_backend<HostAlltoAllConfig>(host);

  auto one_sided = nb::class_<NVLinkOneSidedConfig>(module, "NVLinkOneSidedConfig").def(nb::init<>())
      MOE_EP_RW(NVLinkOneSidedConfig, extra_payload_bytes_per_token)
      MOE_EP_RW(NVLinkOneSidedConfig, eplb_stats_num_experts)
      MOE_EP_RW(NVLinkOneSidedConfig, enable_rank_mask)
      MOE_EP_RW(NVLinkOneSidedConfig, use_low_precision_combine)
      MOE_EP_RW(NVLinkOneSidedConfig, cft)
      MOE_EP_RW(NVLinkOneSidedConfig, cft_max_tokens_for_dispatch)
      MOE_EP_RW(NVLinkOneSidedConfig, cft_max_tokens_for_combine)
      MOE_EP_RW(NVLinkOneSidedConfig, lamport)
      MOE_EP_RW(NVLinkOneSidedConfig, lamport_max_tokens)
      MOE_EP_RW(NVLinkOneSidedConfig, timeout_sec)
      MOE_EP_RW(NVLinkOneSidedConfig, enable_pdl)
      MOE_EP_RW(NVLinkOneSidedConfig, share_workspace)
      MOE_EP_RW(NVLinkOneSidedConfig, max_sms)
      MOE_EP_RW(NVLinkOneSidedConfig, require_nvlink);
  bind_comm_backend<NVLinkOneSidedConfig>(one_sided);

  auto cake = nb::class_<CakeAlltoAllConfig>(module, "CakeAlltoAllConfig").def(nb::init<>())
      MOE_EP_RW(CakeAlltoAllConfig, extra_payload_bytes_per_token)
      MOE_EP_RW(CakeAlltoAllConfig, eplb_stats_num_experts)
      MOE_EP_RW(CakeAlltoAllConfig, enable_rank_mask)
      MOE_EP_RW(CakeAlltoAllConfig, use_low_precision_combine)
      MOE_EP_RW(CakeAlltoAllConfig, enable_pdl)
      MOE_EP_RW(CakeAlltoAllConfig, timeout_sec)
      MOE_EP_RW(CakeAlltoAllConfig, share_workspace)
      MOE_EP_RW(CakeAlltoAllConfig, max_sms);
  // clang-format on
#undef MOE_EP_RW
  bind_comm_backend<CakeAlltoAllConfig>(cake);

  auto two_sided =
      nb::class_<NVLinkTwoSidedConfig>(module, "NVLinkTwoSidedConfig").def(nb::init<>());
  bind_comm_backend<NVLinkTwoSidedConfig>(two_sided);

  module.def(
      "plan_workspace",
      [](int world_size, const MoEEpCommParams& params, const HostAlltoAllConfig& config) {
        const WorkspacePlan plan = plan_workspace(world_size, params, config);
        nb::list regions;
        for (const WorkspaceRegion& region : plan.regions) {
          regions.append(nb::make_tuple(region.name, region.offset, region.bytes));
        }
        return nb::make_tuple(plan.bytes_per_rank, regions);
      },
      "world_size"_a, "params"_a, "config"_a,
      nb::sig("def plan_workspace(world_size: int, params: MoEEpCommParams, config: "
              "HostAlltoAllConfig) -> tuple[int, list[tuple[str, int, int]]]"),
      "(bytes of one slice, [(region, offset, bytes)]).");
}

}  // namespace moe_ep::bindings
