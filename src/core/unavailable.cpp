// The backends that have no kernels yet: they say so, alike on every rank.

#include <moe_ep/nvlink.hpp>

#include "core/agreement.hpp"
#include "core/communication_state.hpp"
#include "core/message.hpp"

namespace moe_ep {
namespace {

std::string explain() {
  const std::string reason = cuda_platform().explain();
  return reason.empty() ? "this version of moe_ep has no kernels for it" : reason;
}

// Throws on every rank, after the others had their chance to say what is wrong with theirs.
template <class Config>
std::unique_ptr<detail::CommunicationState> refuse(const std::string& class_name,
                                                   const BootstrapConfig& bootstrap,
                                                   const MoEEpCommParams& params,
                                                   const Config& config) {
  bootstrap.validate();
  detail::Announcement own;
  own.failure = detail::OwnFailure{false, explain()};
  try {
    params.validate();
    config.validate(bootstrap, params);
  } catch (const std::invalid_argument& error) {
    own.failure = detail::OwnFailure{true, error.what()};
  }
  const auto comm = config.comm_backend != nullptr ? config.comm_backend : detail::self_comm();
  detail::require(comm->get_size() == bootstrap.world_size || config.comm_backend != nullptr,
                  class_name, ": comm_backend is required when world_size > 1, got none");
  detail::agree(*comm, class_name, detail::all_ranks(bootstrap.world_size), bootstrap.rank, own);
  throw MoEEpError(class_name + ": " + explain());
}

}  // namespace

CakeAlltoAll::CakeAlltoAll(const BootstrapConfig& bootstrap, const MoEEpCommParams& params,
                           const CakeAlltoAllConfig& config)
    : MoEEpCommunication(refuse("CakeAlltoAll", bootstrap, params, config)) {}
bool CakeAlltoAll::is_platform_supported() {
  return false;
}
std::string CakeAlltoAll::explain_platform() {
  return explain();
}

NVLinkTwoSidedAlltoAll::NVLinkTwoSidedAlltoAll(const BootstrapConfig& bootstrap,
                                               const MoEEpCommParams& params,
                                               const NVLinkTwoSidedConfig& config)
    : MoEEpCommunication(refuse("NVLinkTwoSidedAlltoAll", bootstrap, params, config)) {}
bool NVLinkTwoSidedAlltoAll::is_platform_supported() {
  return false;
}
std::string NVLinkTwoSidedAlltoAll::explain_platform() {
  return explain();
}

}  // namespace moe_ep
