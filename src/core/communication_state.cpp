#include "core/communication_state.hpp"

#include <algorithm>
#include <thread>

#include "comm/agree.hpp"
#include "core/log.hpp"
#include "core/message.hpp"
#include "core/transports.hpp"

namespace moe_ep::detail {
namespace {

int default_num_threads(int world_size) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / world_size);
}

std::string text(bool value) {
  return value ? "True" : "False";
}

template <class T>
std::string text(const std::optional<T>& value) {
  return value ? concat(*value) : "None";
}

}  // namespace

CommunicationState::CommunicationState(const BootstrapConfig& bootstrap,
                                       const MoEEpCommParams& params, const Options& options)
    : bootstrap_(bootstrap),
      params_(params),
      options_(options),
      default_mask_(RankMask::first(bootstrap.world_size)) {}

Announcement CommunicationState::announcement() const {
  Announcement own;
  own.fields = {
      {"backend", options_.backend_name},
      {"world_size", concat(bootstrap_.world_size)},
      {"num_experts", concat(params_.num_experts)},
      {"top_k", concat(params_.top_k)},
      {"max_tokens_per_rank", concat(params_.max_tokens_per_rank)},
      {"hidden_size", concat(params_.hidden_size)},
      {"dtype", dtype_name(params_.token_dtype())},
      {"dispatch_format",
       params_.dispatch_format ? quant_format_name(*params_.dispatch_format) : "None"},
      {"invalid_expert_id", concat(params_.invalid_expert_id)},
      {"extra_payload_bytes_per_token", concat(options_.extra_payload_bytes_per_token)},
      {"eplb_stats_num_experts", concat(options_.eplb_stats_num_experts)},
      {"enable_rank_mask", text(options_.enable_rank_mask)},
      {"use_low_precision_combine", text(options_.use_low_precision_combine)},
      {"cft", options_.cft ? text(*options_.cft) : "None"},
      {"cft_max_tokens_for_dispatch", concat(options_.cft_max_tokens_for_dispatch)},
      {"cft_max_tokens_for_combine", concat(options_.cft_max_tokens_for_combine)},
      {"lamport", options_.lamport ? text(*options_.lamport) : "None"},
      {"lamport_max_tokens", text(options_.lamport_max_tokens)},
      {"share_workspace", text(options_.share_workspace)},
  };
  return own;
}

std::unique_ptr<CommunicationState> CommunicationState::create(
    const BootstrapConfig& bootstrap, const MoEEpCommParams& params, const Options& options,
    std::optional<OwnFailure> own_failure) {
  std::unique_ptr<CommunicationState> state(new CommunicationState(bootstrap, params, options));
  if (state->options_.comm == nullptr) {
    require(bootstrap.world_size == 1, options.class_name,
            ": comm_backend is required when world_size > 1, got none with world_size ",
            bootstrap.world_size);
    state->options_.comm = self_comm();
  }
  const std::shared_ptr<CommBackend> comm = std::move(state->options_.comm);
  Announcement own = state->announcement();
  own.failure = std::move(own_failure);
  if (!own.failure) own.failure = state->choose_device();
  const WorkspaceKey key{
      comm->identity(), bootstrap.rank,
      own.failure ? ""
                  : concat(state->device_, '/',
                           layout_key(make_layout(bootstrap.world_size, params, options)))};
  if (!own.failure && options.share_workspace) {
    state->workspace_ = find_workspace(key);
    if (state->workspace_ != nullptr && state->workspace_->memory->mapped() &&
        !state->workspace_->failure) {
      own.workspace_id = state->workspace_->memory->id();
    }
  }
  const auto all =
      agree(*comm, options.class_name, all_ranks(bootstrap.world_size), bootstrap.rank, own);
  state->join_workspace(comm, all);
  if (options.share_workspace) remember_workspace(key, state->workspace_);
  warn_of_obstacles(params, options);
  return state;
}

std::optional<OwnFailure> CommunicationState::choose_device() {
  const std::string reason = options_.platform->explain();
  if (!reason.empty()) return OwnFailure{false, reason};
  const auto failure = failure_of(
      [&] { device_ = options_.platform->choose_device(bootstrap_.device, bootstrap_.rank); });
  if (failure) return OwnFailure{false, *failure};
  return std::nullopt;
}

PlatformOptions CommunicationState::platform_options() const {
  PlatformOptions options;
  options.device = device_;
  options.num_threads = options_.num_threads.value_or(default_num_threads(bootstrap_.world_size));
  options.enable_pdl = options_.enable_pdl;
  options.max_sms = options_.max_sms;
  options.require_nvlink = options_.require_nvlink;
  return options;
}

void CommunicationState::make_workspace(CommBackend& comm, const std::vector<int>& members) {
  workspace_ = std::make_shared<SharedWorkspace>();
  workspace_->layout = make_layout(bootstrap_.world_size, params_, options_);
  note_layout();
  workspace_->memory =
      options_.platform->create_memory(comm, static_cast<std::size_t>(slice_bytes_),
                                       platform_options(), bootstrap_.world_size, members);
}

void CommunicationState::note_layout() {
  slice_bytes_ = workspace_->layout.slice_bytes;
  lamport_max_tokens_ = workspace_->layout.lamport.max_tokens;
}

void CommunicationState::make_backend() {
  if (workspace_->record == nullptr) {
    workspace_->record = options_.platform->create_record(device_);
  }
  backend_ = options_.platform->create_backend(platform_options(), workspace_->record);
  backend_->share_device(workspace_->memory->ranks_on_device());
  backend_->set_default_mask(default_mask_, std::nullopt);
}

void CommunicationState::join_workspace(std::shared_ptr<CommBackend> comm,
                                        const std::vector<Announcement>& all) {
  const bool shared = all.front().workspace_id != 0 &&
                      std::all_of(all.begin(), all.end(), [&](const Announcement& peer) {
                        return peer.workspace_id == all.front().workspace_id;
                      });
  if (shared) {
    note_layout();
  } else {
    make_workspace(*comm, all_ranks(bootstrap_.world_size));
  }
  const auto failure = failure_of([&] {
    make_backend();
    if (!shared) backend_->reset(workspace_->view(), 0);
  });
  // Also the barrier between every rank's reset and the first step.
  gather_outcomes(*comm, options_.class_name, failure);
  workspace_->comm = std::move(comm);
}

std::shared_ptr<const void> CommunicationState::workspace_handle() const {
  return workspace_ == nullptr ? nullptr : workspace_->memory;
}

CommunicationState::Call::Call(CommunicationState& state, const char* operation) : state_(state) {
  const std::lock_guard lock(state_.call_mutex_);
  if (state_.in_call_) {
    throw std::logic_error(concat(operation,
                                  ": one thread at a time may use an instance, got a "
                                  "call while another thread is in one"));
  }
  state_.in_call_ = true;
}

CommunicationState::Call::~Call() {
  bool destroy = false;
  {
    const std::lock_guard lock(state_.call_mutex_);
    state_.in_call_ = false;
    destroy = state_.destroy_wanted_;
  }
  if (destroy) state_.release();
}

void CommunicationState::destroy() noexcept {
  {
    const std::lock_guard lock(call_mutex_);
    destroy_wanted_ = true;
    if (in_call_) return;
  }
  release();
}

void CommunicationState::release() noexcept {
  if (workspace_ != nullptr) {
    const bool open = workspace_->open_round == this;
    if (open) {
      workspace_->open_round = nullptr;
      workspace_->abandoned = AbandonedRound{round_.active, round_.transport};
    }
    if (backend_ != nullptr && workspace_.use_count() > 1) {
      if (workspace_->record != nullptr) workspace_->retired.push_back(std::move(backend_));
    } else if (backend_ != nullptr && workspace_->memory->mapped()) {
      end_steps(open || workspace_->failure);
    }
  }
  drop_round();
  workspace_.reset();
  backend_.reset();
  options_.comm.reset();
}

// The memory may go when no step uses it. An unfinished round is not worth waiting for its peers.
void CommunicationState::end_steps(bool abandon) noexcept {
  try {
    if (abandon) backend_->abandon(workspace_->view());
    backend_->synchronize();
  } catch (const std::exception& error) {
    log_warning(options_.class_name + ".destroy: " + error.what());
  }
}

}  // namespace moe_ep::detail
