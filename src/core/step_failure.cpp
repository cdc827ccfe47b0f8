#include "core/step_failure.hpp"

#include <moe_ep/error.hpp>

#include "core/message.hpp"
#include "protocol/layout.hpp"
#include "protocol/step.hpp"

namespace moe_ep::detail {
namespace {

using protocol::kFirstRowBytes;

// "weights, 2 extra payloads"
std::string presence_text(std::int64_t presence) {
  std::string text;
  const auto add = [&](const std::string& item) { text += (text.empty() ? "" : ", ") + item; };
  if ((presence & protocol::kHasWeights) != 0) add("topk_weights");
  if ((presence & protocol::kHasScale) != 0) add("hidden_states_scale");
  if ((presence & protocol::kHasEplbStats) != 0) add("eplb_local_stats");
  const auto bits = static_cast<std::uint32_t>(presence);
  const std::uint32_t num_extras = (bits & 0xffu) / protocol::kExtraPayload;
  if (num_extras > 0) {
    add(concat(num_extras, " extra_payloads of name hash ", bits >> protocol::kNameHashShift));
  }
  return text.empty() ? "none" : text;
}

std::string field_name(const StepFailure& failure) {
  const int field = failure.status.field;
  if (failure.status.phase == Phase::kCombine) {
    return field == static_cast<int>(protocol::CombineField::kRowBytes) ? "bytes of a combine row"
                                                                        : "combine row format";
  }
  switch (field) {
#define MOE_EP_CASE(name, text) \
  case protocol::name:          \
    return text;
    MOE_EP_FOR_EACH_SIGNATURE_FIELD(MOE_EP_CASE)
#undef MOE_EP_CASE
    default:
      break;
  }
  const auto payload = static_cast<std::size_t>(field - kFirstRowBytes);
  return "row bytes of " + (payload < failure.payload_names.size() ? failure.payload_names[payload]
                                                                   : concat("payload ", payload));
}

std::string field_value(const StepFailure& failure, std::int64_t value) {
  if (failure.status.phase == Phase::kDispatch) {
    if (failure.status.field == protocol::kPresence) return presence_text(value);
    if (failure.status.field == protocol::kTransport) {
      return transport_name(static_cast<Transport>(value));
    }
  } else if (failure.status.field == static_cast<int>(protocol::CombineField::kRowBytes) &&
             value == 0) {
    return "an abandoned round";
  }
  return std::to_string(value);
}

}  // namespace

void StepFailure::raise() const {
  const std::string where = concat(" (rank ", rank, ", step ", status.epoch, ")");
  if (status.result == protocol::StepResult::kMismatch) {
    throw MoEEpMismatchError(
        concat(operation, ": ", field_name(*this), " must be the same on every rank, got ",
               field_value(*this, status.got), " on rank ", status.peer, " and ",
               field_value(*this, status.want), " on rank ", rank, where));
  }
  if (status.result == protocol::StepResult::kCorrupt) {
    throw MoEEpError(concat(operation, ": a rank may send 0 to ", status.want, " rows, got ",
                            status.got, " from rank ", status.peer, where));
  }
  std::vector<int> missing;
  status.missing.for_each([&](int peer) { missing.push_back(peer); });
  throw MoEEpTimeoutError(concat(operation, ": every active rank must arrive within ",
                                 static_cast<double>(timeout_ns) * 1e-9, " s, got nothing from ",
                                 list_ranks(missing), where),
                          missing, status.phase);
}

}  // namespace moe_ep::detail
