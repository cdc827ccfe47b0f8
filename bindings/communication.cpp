// The backend classes, behind one Python class: Python's own classes hold one each.
//
// A dispatch hands out the same Python result as long as it would describe the same views: results
// are kept by what they describe, so that a step in steady state builds no tensor.

#include <moe_ep/communication.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <unordered_map>

#include <moe_ep/host.hpp>
#include <moe_ep/nvlink.hpp>
#include <moe_ep/stats.hpp>

#include "comm.hpp"
#include "parts.hpp"
#include "tensor.hpp"

namespace moe_ep::bindings {
namespace {

// Keeps a workspace mapped while Python tensors view it.
struct WorkspaceMemory {
  std::shared_ptr<const void> owner;
  TensorView bytes;
};

// (offset from the slice's start, shape, (DLPack code, bits, lanes))
nb::tuple describe_view(const TensorView& view, const std::byte* slice) {
  nb::list shape;
  for (int dim = 0; dim < view.ndim; ++dim)
    shape.append(view.size(dim));
  return nb::make_tuple(static_cast<const std::byte*>(view.data) - slice, nb::tuple(shape),
                        nb::make_tuple(view.dtype.code, view.dtype.bits, view.dtype.lanes));
}

nb::object describe_optional(const std::optional<TensorView>& view, const std::byte* slice) {
  if (!view) return nb::none();
  return describe_view(*view, slice);
}

void append(std::string& key, const TensorView& view) {
  key.append(reinterpret_cast<const char*>(&view.data), sizeof view.data);
  key.append(reinterpret_cast<const char*>(&view.dtype), sizeof view.dtype);
  key.append(reinterpret_cast<const char*>(view.shape.data()),
             sizeof(std::int64_t) * static_cast<std::size_t>(view.ndim));
}

void append(std::string& key, char kind, const std::optional<TensorView>& view) {
  if (!view) return;
  key += kind;
  append(key, *view);
}

std::string key_of(const MoEEpDispatchResult& result) {
  std::string key;
  append(key, result.hidden_states);
  append(key, result.topk_ids);
  append(key, 'w', result.topk_weights);
  append(key, 's', result.hidden_states_scale);
  append(key, 'e', result.eplb_gathered_stats);
  for (const NamedPayload& extra : result.extra_payloads) {
    key += 'x' + extra.name + '\0';
    append(key, extra.tensor);
  }
  return key;
}

nb::dict to_dict(const PhaseStats& stats) {
  nb::dict counts;
#define MOE_EP_ITEM(name) counts[#name] = stats.name;
  MOE_EP_FOR_EACH_PHASE_COUNTER(MOE_EP_ITEM)
#undef MOE_EP_ITEM
  return counts;
}

nb::tuple to_dicts(const CommunicationStats& stats) {
  nb::dict steps;
#define MOE_EP_ITEM(name, text) \
  steps[text] = stats.steps_by_transport[static_cast<std::size_t>(Transport::k##name)];
  MOE_EP_FOR_EACH_TRANSPORT(MOE_EP_ITEM)
#undef MOE_EP_ITEM
  nb::dict events;
#define MOE_EP_ITEM(name) events[#name] = stats.name;
  MOE_EP_FOR_EACH_EVENT_COUNTER(MOE_EP_ITEM)
#undef MOE_EP_ITEM
  return nb::make_tuple(steps, to_dict(stats.dispatch), to_dict(stats.combine), events);
}

class Communication {
 public:
  explicit Communication(std::unique_ptr<MoEEpCommunication> impl) : impl_(std::move(impl)) {}
  Communication(const Communication&) = delete;
  Communication& operator=(const Communication&) = delete;

  // The result for `describe`d views comes from `make_result(views)`, once.
  nb::object dispatch(nb::handle hidden_states, nb::handle topk_ids, nb::handle topk_weights,
                      nb::handle scale, nb::handle tokens_per_rank, nb::handle eplb_stats,
                      nb::handle mask, nb::handle extras, nb::handle make_result) {
    const char* op = "dispatch";
    DispatchInputs inputs;
    inputs.hidden_states = view_of(hidden_states, op, "hidden_states");
    inputs.topk_ids = view_of(topk_ids, op, "topk_ids");
    inputs.topk_weights = optional_view_of(topk_weights, op, "topk_weights");
    inputs.hidden_states_scale = optional_view_of(scale, op, "hidden_states_scale");
    inputs.runtime_max_tokens_per_rank =
        optional_int_of(tokens_per_rank, op, "runtime_max_tokens_per_rank");
    inputs.eplb_local_stats = optional_view_of(eplb_stats, op, "eplb_local_stats");
    inputs.active_rank_mask = optional_mask_of(mask, op, impl_->bootstrap().world_size);
    if (!extras.is_none()) {
      if (!nb::isinstance<nb::dict>(extras)) {
        throw TypeMismatchError("dispatch: extra_payloads must be a dict of tensors or None, got " +
                                nb::cast<std::string>(extras.type().attr("__name__")));
      }
      for (const auto& [name, tensor] : nb::borrow<nb::dict>(extras)) {
        if (!nb::isinstance<nb::str>(name)) {
          throw TypeMismatchError("dispatch: extra_payloads must have names of type str, got " +
                                  nb::cast<std::string>(nb::repr(name)));
        }
        const auto text = nb::cast<std::string>(name);
        const std::string label = "extra_payloads['" + text + "']";
        inputs.extra_payloads.push_back({text, view_of(tensor, op, label.c_str())});
      }
    }
    inputs.stream = stream_of(hidden_states, inputs.hidden_states);
    MoEEpDispatchResult result;
    {
      const nb::gil_scoped_release release;
      result = impl_->dispatch(inputs);
    }
    std::string key = key_of(result);
    const auto known = results_.find(key);
    if (known != results_.end()) return known->second;
    nb::object made = make_result(describe(result));
    results_.emplace(std::move(key), made);
    return made;
  }

  void combine(nb::handle expert_output, nb::handle output, nb::handle mask) {
    const TensorView rows = view_of(expert_output, "combine", "expert_output");
    const TensorView result = view_of(output, "combine", "output");
    const auto active = optional_mask_of(mask, "combine", impl_->bootstrap().world_size);
    const auto stream = stream_of(expert_output, rows);
    const nb::gil_scoped_release release;
    impl_->combine(rows, result, active, stream);
  }

  nb::tuple combine_input_buffer(int code, int bits, int lanes) {
    const TensorView view = impl_->get_combine_input_buffer({static_cast<std::uint8_t>(code),
                                                             static_cast<std::uint8_t>(bits),
                                                             static_cast<std::uint16_t>(lanes)});
    return describe_view(view, impl_->slice());
  }

  WorkspaceMemory memory() const {
    TensorView bytes(impl_->slice(), kUInt8, {impl_->workspace_bytes()}, impl_->device());
    return {impl_->workspace_handle(), bytes};
  }

  ~Communication() { destroy(); }

  // Waits for enqueued steps, whose peers may need the GIL.
  void destroy() {
    results_.clear();
    const nb::gil_scoped_release release;
    impl_->destroy();
  }

  MoEEpCommunication& impl() { return *impl_; }

 private:
  // The stream of the bootstrap, else the caller's current one.
  std::uintptr_t stream_of(nb::handle tensor, const TensorView& view) const {
    const std::uintptr_t fixed = impl_->bootstrap().stream;
    return fixed != 0 ? fixed : current_stream_of(tensor, view.device);
  }

  nb::tuple describe(const MoEEpDispatchResult& result) const {
    const std::byte* slice = impl_->slice();
    nb::list extras;
    for (const NamedPayload& extra : result.extra_payloads) {
      extras.append(nb::make_tuple(extra.name, describe_view(extra.tensor, slice)));
    }
    return nb::make_tuple(describe_view(result.hidden_states, slice),
                          describe_view(result.topk_ids, slice),
                          describe_optional(result.topk_weights, slice), result.tokens_per_rank,
                          describe_optional(result.hidden_states_scale, slice),
                          describe_optional(result.eplb_gathered_stats, slice),
                          describe_view(result.recv_counts, slice), extras);
  }

  std::unique_ptr<MoEEpCommunication> impl_;
  std::unordered_map<std::string, nb::object> results_;
};

template <class Class, class Config>
void bind_backend(nb::module_& module, const char* suffix) {
  using namespace nb::literals;
  module.def(
      (std::string("make_") + suffix).c_str(),
      [](const BootstrapConfig& bootstrap, const MoEEpCommParams& params, const Config& config) {
        const nb::gil_scoped_release release;
        return std::make_unique<Communication>(std::make_unique<Class>(bootstrap, params, config));
      },
      "bootstrap"_a, "params"_a, "config"_a);
  if constexpr (requires { &Class::rejoin; }) {
    module.def(
        (std::string("rejoin_") + suffix).c_str(),
        [](const BootstrapConfig& bootstrap, const MoEEpCommParams& params, const Config& config,
           const std::vector<int>& active_ranks, nb::object backend, nb::object group) {
          auto comm = wrap_comm(std::move(backend), std::move(group));
          const nb::gil_scoped_release release;
          return std::make_unique<Communication>(
              Class::rejoin(bootstrap, params, config, active_ranks, std::move(comm)));
        },
        "bootstrap"_a, "params"_a, "config"_a, "active_ranks"_a, "comm_backend"_a, "group"_a);
  }
  module.def((std::string("explain_") + suffix).c_str(), &Class::explain_platform,
             "Why the backend cannot run here; empty where it can.");
}

}  // namespace

void bind_communication(nb::module_& module) {
  using namespace nb::literals;
  const auto no_gil = nb::call_guard<nb::gil_scoped_release>();

  nb::class_<WorkspaceMemory>(module, "WorkspaceMemory",
                              "A rank's slice; alive as long as this object.")
      .def(
          "tensor",
          [](nb::handle self) {
            const auto& bytes = nb::cast<const WorkspaceMemory&>(self).bytes;
            return nb::ndarray<nb::pytorch, std::uint8_t, nb::ndim<1>>(
                bytes.data, {static_cast<std::size_t>(bytes.size(0))}, self, {},
                nb::dtype<std::uint8_t>(), bytes.device.type, bytes.device.index);
          },
          "A uint8 torch tensor over the slice; it keeps this object alive.");

  nb::class_<Communication>(module, "Communication", "A backend instance.")
      .def("dispatch", &Communication::dispatch, "hidden_states"_a.none(), "topk_ids"_a.none(),
           "topk_weights"_a.none(), "hidden_states_scale"_a.none(),
           "runtime_max_tokens_per_rank"_a.none(), "eplb_local_stats"_a.none(),
           "active_rank_mask"_a.none(), "extra_payloads"_a.none(), "make_result"_a)
      .def("combine", &Communication::combine, "expert_output"_a.none(), "output"_a.none(),
           "active_rank_mask"_a.none())
      .def("combine_input_buffer", &Communication::combine_input_buffer, "code"_a, "bits"_a,
           "lanes"_a,
           nb::sig("def combine_input_buffer(self, code: int, bits: int, lanes: int) -> "
                   "tuple[int, tuple[int, ...], tuple[int, int, int]]"))
      .def("num_local_tokens", [](Communication& c) { return c.impl().num_local_tokens(); })
      .def("memory", &Communication::memory)
      .def("destroy", &Communication::destroy)
      .def("check", [](Communication& c) { c.impl().check(); })
      .def(
          "synchronize", [](Communication& c) { c.impl().synchronize(); }, no_gil)
      .def(
          "set_active_ranks",
          [](Communication& c, const std::vector<int>& ranks,
             std::optional<std::uintptr_t> stream) { c.impl().set_active_ranks(ranks, stream); },
          "ranks"_a, "stream"_a.none())
      .def(
          "recover",
          [](Communication& c, const std::vector<int>& ranks, nb::object backend,
             nb::object group) {
            auto comm = wrap_comm(std::move(backend), std::move(group));
            const nb::gil_scoped_release release;
            c.impl().recover(ranks, std::move(comm));
          },
          "active_ranks"_a, "comm_backend"_a, "group"_a)
      .def(
          "checkpoint_prepare", [](Communication& c) { c.impl().checkpoint_prepare(); }, no_gil)
      .def(
          "checkpoint_restore",
          [](Communication& c, nb::object backend, nb::object group) {
            auto comm = wrap_comm(std::move(backend), std::move(group));
            const nb::gil_scoped_release release;
            c.impl().checkpoint_restore(std::move(comm));
          },
          "comm_backend"_a, "group"_a)
      .def_prop_ro("device",
                   [](Communication& c) {
                     const Device device = c.impl().device();
                     return std::make_pair(device.type, device.index);
                   })
      .def_prop_ro("last_transport",
                   [](Communication& c) -> std::optional<std::string> {
                     const auto transport = c.impl().last_transport();
                     if (!transport) return std::nullopt;
                     return transport_name(*transport);
                   })
      .def_prop_ro("lamport_enabled", [](Communication& c) { return c.impl().lamport_enabled(); })
      .def_prop_ro("lamport_max_tokens",
                   [](Communication& c) -> std::optional<std::int64_t> {
                     if (!c.impl().lamport_enabled()) return std::nullopt;
                     return c.impl().lamport_max_tokens();
                   })
      .def(
          "stats", [](Communication& c) { return to_dicts(c.impl().stats()); },
          nb::sig("def stats(self) -> tuple[dict[str, int], dict[str, int], dict[str, int], "
                  "dict[str, int]]"),
          "(steps by transport, dispatch, combine, events).")
      .def_prop_ro("workspace_bytes", [](Communication& c) { return c.impl().workspace_bytes(); });

  module.def(
      "refuse_construction",
      [](const BootstrapConfig& bootstrap, nb::object backend, nb::object group,
         const std::string& class_name, const std::string& reason) {
        const auto comm = wrap_comm(std::move(backend), std::move(group));
        const nb::gil_scoped_release release;
        refuse_construction(bootstrap, *comm, class_name, reason);
      },
      "bootstrap"_a, "comm_backend"_a, "group"_a, "class_name"_a, "reason"_a);
  bind_backend<HostAlltoAll, HostAlltoAllConfig>(module, "host");
  bind_backend<NVLinkOneSidedAlltoAll, NVLinkOneSidedConfig>(module, "nvlink_one_sided");
  bind_backend<CakeAlltoAll, CakeAlltoAllConfig>(module, "cake");
  bind_backend<NVLinkTwoSidedAlltoAll, NVLinkTwoSidedConfig>(module, "nvlink_two_sided");
}

}  // namespace moe_ep::bindings
