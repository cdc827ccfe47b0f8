// The round of an instance: dispatch, combine and what may be called between them.

#include <algorithm>

#include "comm/agree.hpp"
#include "core/communication_state.hpp"
#include "core/message.hpp"
#include "core/step.hpp"
#include "core/transports.hpp"
#include "protocol/fp8_wire.hpp"

namespace moe_ep::detail {
namespace {

// Of all payloads of a token.
std::int64_t row_bytes(const protocol::DispatchParams& step) {
  std::int64_t bytes = 0;
  for (std::int32_t payload = 0; payload < step.num_payloads; ++payload)
    bytes += step.row_bytes(payload);
  return bytes;
}

}  // namespace

SharedWorkspace& CommunicationState::usable(const char* operation) {
  if (workspace_ == nullptr) {
    throw std::logic_error(concat(operation,
                                  ": the instance must not be destroyed, got a call "
                                  "after destroy()"));
  }
  if (!workspace_->memory->mapped()) {
    throw std::logic_error(concat(operation,
                                  ": the workspace must be mapped, got a call between "
                                  "checkpoint_prepare() and checkpoint_restore()"));
  }
  if (workspace_->torn) {
    throw MoEEpError(concat(operation,
                            ": the instance must be recovered after a recover() that failed, got "
                            "a call before the next one"));
  }
  if (!workspace_->failure) raise_pending_failure();
  if (workspace_->failure) {
    try {
      workspace_->failure->raise();
    } catch (const std::exception& error) {
      throw MoEEpError(concat(operation,
                              ": the instance must be recovered after a failed step, "
                              "got a call before recover(); the step ended with '",
                              error.what(), "'"));
    }
  }
  return *workspace_;
}

void CommunicationState::raise_pending_failure() {
  const auto status = backend_->pending_failure();
  if (status) fail(*status);
}

Stream CommunicationState::stream_for(std::optional<Stream> stream) const {
  return stream.value_or(bootstrap_.stream);
}

std::uint64_t CommunicationState::timeout_ns() const {
  return static_cast<std::uint64_t>(options_.timeout_sec) * 1'000'000'000ull;
}

void CommunicationState::require_open_round(const char* operation) const {
  // recover() of another instance on this workspace has ended the round.
  if (!round_.open || workspace_->open_round != this) {
    throw std::logic_error(concat(operation, ": a dispatch must come first, got no open round"));
  }
}

void CommunicationState::finish_abandoned_round(SharedWorkspace& workspace, const RankMask& active,
                                                Stream stream) {
  if (!workspace.abandoned) return;
  // A combine of nothing, whose rows of 0 bytes tell peers that did not abandon the round that
  // there is nothing to get here.
  protocol::CombineParams step;
  step.workspace = workspace.view();
  step.active = workspace.abandoned->active & active;  // nobody will touch the others' rows
  step.elements = 1;
  step.transport = workspace.abandoned->transport;
  step.timeout_ns = timeout_ns();
  const protocol::StepStatus status = backend_->combine(step, {}, stream);
  if (!status.ok()) fail(status);
  workspace.abandoned.reset();
}

RankMask CommunicationState::mask_for(const char* operation,
                                      const std::optional<RankMask>& mask) const {
  if (!mask) return default_mask_;
  require(options_.enable_rank_mask, operation,
          ": active_rank_mask needs enable_rank_mask=True at construction, got a mask without it");
  check_mask(operation, *mask, bootstrap_.rank, bootstrap_.world_size);
  return *mask;
}

void CommunicationState::drop_round() noexcept {
  if (round_.open) counters_.abandoned_rounds.add(1);
  round_ = {};
}

void CommunicationState::fail(const protocol::StepStatus& status) {
  drop_round();
  counters_.add_failure(status.result);
  workspace_->open_round = nullptr;
  const bool in_dispatch = status.phase == Phase::kDispatch;
  workspace_->failure =
      StepFailure{phase_name(status.phase), bootstrap_.rank, status, timeout_ns(),
                  in_dispatch ? payload_names_.list() : std::vector<std::string>{}};
  workspace_->failure->raise();
}

MoEEpDispatchResult CommunicationState::dispatch(const DispatchInputs& given) {
  const Call call(*this, "dispatch");
  // Extra payloads are named, so their order must not matter.
  DispatchInputs inputs = given;
  std::sort(inputs.extra_payloads.begin(), inputs.extra_payloads.end(),
            [](const NamedPayload& a, const NamedPayload& b) { return a.name < b.name; });
  SharedWorkspace& workspace = usable("dispatch");
  if (workspace.open_round != nullptr) {
    throw std::logic_error(workspace.open_round == this
                               ? "dispatch: the last round must be combined first, got a second "
                                 "dispatch"
                               : "dispatch: rounds on a shared workspace must not overlap, got a "
                                 "dispatch while another instance's round is open "
                                 "(share_workspace=False gives an instance its own)");
  }
  const RankMask active = mask_for("dispatch", inputs.active_rank_mask);
  protocol::DispatchParams step =
      make_dispatch(workspace.view(), params_, options_, device_, active, inputs);
  const Transport transport = choose_transport(params_, step, inputs);
  step.signature.fields[protocol::kTransport] = static_cast<std::int32_t>(transport);
  step.follows_default_mask = options_.enable_rank_mask && !inputs.active_rank_mask;
  const Stream stream = stream_for(inputs.stream);
  finish_abandoned_round(workspace, active, stream);
  payload_names_.remember(inputs);
  const protocol::StepStatus status = backend_->dispatch(step, stream);
  if (!status.ok()) fail(status);
  workspace.open_round = this;
  drop_round();  // what recover() of another instance has left
  round_ = {true, step.num_tokens, step.tokens_per_rank, active, transport, {}};
  if (device_.type == Device::kCpu) round_.traffic = Traffic::of(step.workspace);
  last_transport_ = transport;
  counters_.steps_by_transport[static_cast<int>(transport)].add(1);
  counters_.dispatch.add(step.num_tokens, round_.traffic, row_bytes(step));
  return dispatch_result(step, inputs);
}

void CommunicationState::combine(const TensorView& expert_output, const TensorView& output,
                                 const std::optional<RankMask>& mask,
                                 std::optional<Stream> stream) {
  const Call call(*this, "combine");
  const std::string op = "combine";
  SharedWorkspace& workspace = usable("combine");
  require_open_round("combine");
  if (mask && mask_for("combine", mask) != round_.active) {
    throw std::logic_error("combine: active_rank_mask must equal the dispatch's, got another one");
  }
  const DType dtype = params_.token_dtype();
  const std::int64_t hidden = params_.hidden_size;
  require(expert_output.dtype == dtype, op, ": expert_output must be ", dtype_name(dtype),
          " (params.dtype), got ", expert_output);
  const std::int64_t stride = check_expert_output(op, expert_output, bootstrap_.world_size,
                                                  round_.tokens_per_rank, hidden, device_);
  require(output.dtype == dtype && output.ndim == 2 && output.size(0) == round_.num_tokens &&
              output.size(1) == hidden && output.is_contiguous() && output.device == device_,
          op, ": output must be a contiguous ", device_, ' ', dtype_name(dtype), " [",
          round_.num_tokens, ", ", hidden, "], got ", output);
  check_alignment(op, "output", output);

  protocol::CombineParams step;
  step.workspace = workspace.view();
  step.active = round_.active;
  step.transport = round_.transport;
  step.num_tokens = round_.num_tokens;
  step.tokens_per_rank = round_.tokens_per_rank;
  step.elements = static_cast<std::int32_t>(hidden);
  step.row_bytes = hidden * itemsize(dtype);
  step.format =
      combine_format(dtype) | (options_.use_low_precision_combine ? protocol::kCombineFp8Wire : 0);
  step.timeout_ns = timeout_ns();
  set_expert_output(op, step, expert_output, stride);
  check_output_apart(op, step, output);
  CombineOutput to;
  to.rows = static_cast<std::byte*>(output.data);
  to.stride = step.row_bytes;
  to.dtype = dtype;
  const protocol::StepStatus status = backend_->combine(step, to, stream_for(stream));
  if (!status.ok()) fail(status);
  workspace.open_round = nullptr;
  const bool encoded =
      options_.use_low_precision_combine && protocol::fp8_wire_pays(hidden, itemsize(dtype));
  counters_.combine.add(step.num_tokens, round_.traffic.back(),
                        encoded ? protocol::fp8_wire_row_bytes(hidden) : step.row_bytes);
  round_ = {};
}

TensorView CommunicationState::combine_input_buffer(DType dtype) {
  const SharedWorkspace& workspace = usable("get_combine_input_buffer");
  require_open_round("get_combine_input_buffer");
  require(dtype == params_.token_dtype(), "get_combine_input_buffer: dtype must be ",
          dtype_name(params_.token_dtype()), " (params.dtype), got ", dtype_name(dtype));
  const protocol::Workspace view = workspace.view();
  return TensorView(view.own() + view.layout.combine, dtype,
                    {static_cast<std::int64_t>(bootstrap_.world_size) * round_.tokens_per_rank,
                     params_.hidden_size},
                    device_);
}

std::int64_t CommunicationState::num_local_tokens() {
  usable("combine");  // which this is part of
  require_open_round("combine");
  return round_.num_tokens;
}

void CommunicationState::check() {
  if (workspace_ == nullptr) {
    throw std::logic_error("check: the instance must not be destroyed, got a call after destroy()");
  }
  if (workspace_->failure) workspace_->failure->raise();
  raise_pending_failure();
}

void CommunicationState::synchronize() {
  if (workspace_ != nullptr) backend_->synchronize();
  check();
}

}  // namespace moe_ep::detail
