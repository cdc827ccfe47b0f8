#include <moe_ep/communication.hpp>

#include <moe_ep/a2a.hpp>
#include <moe_ep/host.hpp>
#include <moe_ep/nvlink.hpp>

#include "core/communication_state.hpp"

namespace moe_ep {
namespace {

// A rank's own checks, as data: the first collective tells everybody.
template <class Config>
std::optional<detail::OwnFailure> own_failure(const BootstrapConfig& bootstrap,
                                              const MoEEpCommParams& params, const Config& config) {
  try {
    params.validate();
    config.validate(bootstrap, params);
  } catch (const std::invalid_argument& error) {
    return detail::OwnFailure{true, error.what()};
  }
  return std::nullopt;
}

template <class Config>
std::unique_ptr<detail::CommunicationState> create(const BootstrapConfig& bootstrap,
                                                   const MoEEpCommParams& params,
                                                   const Config& config) {
  bootstrap.validate();
  return detail::CommunicationState::create(bootstrap, params, detail::make_options(config),
                                            own_failure(bootstrap, params, config));
}

template <class Config>
std::unique_ptr<detail::CommunicationState> rejoining(const BootstrapConfig& bootstrap,
                                                      const MoEEpCommParams& params,
                                                      const Config& config,
                                                      const std::vector<int>& active_ranks,
                                                      std::shared_ptr<CommBackend> comm_backend) {
  bootstrap.validate();
  return detail::CommunicationState::rejoin(bootstrap, params, detail::make_options(config),
                                            own_failure(bootstrap, params, config), active_ranks,
                                            std::move(comm_backend));
}

}  // namespace

MoEEpCommunication::MoEEpCommunication(std::unique_ptr<detail::CommunicationState> state)
    : state_(std::move(state)) {}
MoEEpCommunication::~MoEEpCommunication() = default;

MoEEpDispatchResult MoEEpCommunication::dispatch(const DispatchInputs& inputs) {
  return state_->dispatch(inputs);
}
void MoEEpCommunication::combine(const TensorView& expert_output, const TensorView& output,
                                 const std::optional<RankMask>& active_rank_mask,
                                 std::optional<std::uintptr_t> stream) {
  state_->combine(expert_output, output, active_rank_mask, stream);
}
TensorView MoEEpCommunication::get_combine_input_buffer(DType dtype) {
  return state_->combine_input_buffer(dtype);
}
std::int64_t MoEEpCommunication::num_local_tokens() const {
  return state_->num_local_tokens();
}
void MoEEpCommunication::destroy() noexcept {
  state_->destroy();
}
void MoEEpCommunication::check() const {
  state_->check();
}
void MoEEpCommunication::synchronize() const {
  state_->synchronize();
}

RankMask MoEEpCommunication::active_rank_mask(const std::vector<int>& ranks) const {
  return moe_a2a_active_rank_mask(ranks, bootstrap().world_size);
}
void MoEEpCommunication::set_active_ranks(const std::vector<int>& ranks,
                                          std::optional<std::uintptr_t> stream) {
  state_->set_active_ranks(ranks, stream);
}
void MoEEpCommunication::recover(const std::vector<int>& active_ranks,
                                 std::shared_ptr<CommBackend> comm_backend) {
  state_->recover(active_ranks, std::move(comm_backend));
}
void MoEEpCommunication::checkpoint_prepare() {
  state_->checkpoint_prepare();
}
void MoEEpCommunication::checkpoint_restore(std::shared_ptr<CommBackend> comm_backend) {
  state_->checkpoint_restore(std::move(comm_backend));
}

std::optional<Transport> MoEEpCommunication::last_transport() const noexcept {
  return state_->last_transport();
}
CommunicationStats MoEEpCommunication::stats() const noexcept {
  return state_->stats();
}
bool MoEEpCommunication::lamport_enabled() const noexcept {
  return state_->lamport_max_tokens() > 0;
}
std::int64_t MoEEpCommunication::lamport_max_tokens() const noexcept {
  return state_->lamport_max_tokens();
}
const char* MoEEpCommunication::backend_name() const noexcept {
  return state_->options().backend_name.c_str();
}
Device MoEEpCommunication::device() const noexcept {
  return state_->device();
}
const BootstrapConfig& MoEEpCommunication::bootstrap() const noexcept {
  return state_->bootstrap();
}
const MoEEpCommParams& MoEEpCommunication::params() const noexcept {
  return state_->params();
}
int MoEEpCommunication::timeout_sec() const noexcept {
  return state_->options().timeout_sec;
}
std::int64_t MoEEpCommunication::workspace_bytes() const noexcept {
  return state_->slice_bytes();
}
std::byte* MoEEpCommunication::slice() const noexcept {
  return state_->slice();
}
std::shared_ptr<const void> MoEEpCommunication::workspace_handle() const {
  return state_->workspace_handle();
}

void refuse_construction(const BootstrapConfig& bootstrap, CommBackend& comm_backend,
                         const std::string& class_name, const std::string& reason) {
  detail::Announcement own;
  own.failure = detail::OwnFailure{true, reason};
  detail::agree(comm_backend, class_name, detail::all_ranks(bootstrap.world_size), bootstrap.rank,
                own);
  throw std::logic_error(class_name + ": a refused construction must not succeed");
}

HostAlltoAll::HostAlltoAll(const BootstrapConfig& bootstrap, const MoEEpCommParams& params,
                           const HostAlltoAllConfig& config)
    : MoEEpCommunication(create(bootstrap, params, config)) {}

std::unique_ptr<HostAlltoAll> HostAlltoAll::rejoin(const BootstrapConfig& bootstrap,
                                                   const MoEEpCommParams& params,
                                                   const HostAlltoAllConfig& config,
                                                   const std::vector<int>& active_ranks,
                                                   std::shared_ptr<CommBackend> comm_backend) {
  return std::unique_ptr<HostAlltoAll>(new HostAlltoAll(
      rejoining(bootstrap, params, config, active_ranks, std::move(comm_backend))));
}

bool HostAlltoAll::is_platform_supported() {
  return explain_platform().empty();
}
std::string HostAlltoAll::explain_platform() {
  return host_platform().explain();
}

NVLinkOneSidedAlltoAll::NVLinkOneSidedAlltoAll(const BootstrapConfig& bootstrap,
                                               const MoEEpCommParams& params,
                                               const NVLinkOneSidedConfig& config)
    : MoEEpCommunication(create(bootstrap, params, config)) {}

std::unique_ptr<NVLinkOneSidedAlltoAll> NVLinkOneSidedAlltoAll::rejoin(
    const BootstrapConfig& bootstrap, const MoEEpCommParams& params,
    const NVLinkOneSidedConfig& config, const std::vector<int>& active_ranks,
    std::shared_ptr<CommBackend> comm_backend) {
  return std::unique_ptr<NVLinkOneSidedAlltoAll>(new NVLinkOneSidedAlltoAll(
      rejoining(bootstrap, params, config, active_ranks, std::move(comm_backend))));
}

bool NVLinkOneSidedAlltoAll::is_platform_supported() {
  return explain_platform().empty();
}
std::string NVLinkOneSidedAlltoAll::explain_platform() {
  return cuda_platform().explain();
}

}  // namespace moe_ep
