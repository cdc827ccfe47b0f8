// What a slice says, as plain Python values.

#include <moe_ep/inspect.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "parts.hpp"

namespace moe_ep::bindings {
namespace {

nb::dict to_dict(const PeerInspection& peer) {
  nb::dict fields;
#define MOE_EP_ITEM(name) fields[#name] = peer.name;
  MOE_EP_ITEM(rank)
  MOE_EP_ITEM(dispatch_epoch)
  MOE_EP_ITEM(combine_epoch)
  MOE_EP_ITEM(dispatch_flag)
  MOE_EP_ITEM(combine_flag)
  MOE_EP_ITEM(announced_rows)
  MOE_EP_ITEM(combine_code)
  MOE_EP_ITEM(tokens_per_rank)
  MOE_EP_ITEM(rows_received)
  MOE_EP_ITEM(rows_sent)
  MOE_EP_ITEM(dispatch_bytes)
  MOE_EP_ITEM(combine_bytes)
  MOE_EP_ITEM(expected_dispatch_bytes)
  MOE_EP_ITEM(expected_combine_bytes)
#undef MOE_EP_ITEM
  fields["transport"] =
      peer.transport ? nb::object(nb::str(transport_name(*peer.transport))) : nb::none();
  fields["line_tags"] = nb::make_tuple(peer.line_tags[0], peer.line_tags[1]);
  fields["combine_tags"] = nb::make_tuple(peer.combine_tags[0], peer.combine_tags[1]);
  return fields;
}

nb::dict to_dict(const SliceInspection& slice) {
  nb::dict fields;
#define MOE_EP_ITEM(name) fields[#name] = slice.name;
  MOE_EP_ITEM(rank)
  MOE_EP_ITEM(num_ranks)
  MOE_EP_ITEM(max_tokens)
  MOE_EP_ITEM(epoch)
  MOE_EP_ITEM(has_lamport)
  MOE_EP_ITEM(has_counted)
#undef MOE_EP_ITEM
  nb::list active;
  slice.active.for_each([&](int rank) { active.append(rank); });
  fields["active"] = active;
  nb::list peers;
  for (const PeerInspection& peer : slice.peers)
    peers.append(to_dict(peer));
  fields["peers"] = peers;
  return fields;
}

}  // namespace

void bind_inspect(nb::module_& module) {
  using namespace nb::literals;
  module.def(
      "inspect_slice",
      [](const nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& slice) {
        return to_dict(
            inspect_slice(reinterpret_cast<const std::byte*>(slice.data()), slice.size()));
      },
      "slice"_a, nb::sig("def inspect_slice(slice: object) -> dict[str, object]"),
      "What a slice of the host backend says (a buffer); ValueError for bytes that are none.");
}

}  // namespace moe_ep::bindings
