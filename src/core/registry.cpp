// Backends by name.

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>

#include <moe_ep/communication.hpp>
#include <moe_ep/host.hpp>
#include <moe_ep/nvlink.hpp>

#include "comm/agree.hpp"
#include "core/message.hpp"

namespace moe_ep {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, CommunicationFactory> factories;
};

template <class Class, class Config>
std::unique_ptr<MoEEpCommunication> make(const BootstrapConfig& bootstrap,
                                         const MoEEpCommParams& params,
                                         std::shared_ptr<CommBackend> comm_backend) {
  Config config;
  config.comm_backend = std::move(comm_backend);
  return std::make_unique<Class>(bootstrap, params, config);
}

Registry& registry() {
  static auto* instance =
      new Registry{{},
                   {{"host", make<HostAlltoAll, HostAlltoAllConfig>},
                    {"nvlink_one_sided", make<NVLinkOneSidedAlltoAll, NVLinkOneSidedConfig>},
                    {"nvlink_two_sided", make<NVLinkTwoSidedAlltoAll, NVLinkTwoSidedConfig>},
                    {"cake", make<CakeAlltoAll, CakeAlltoAllConfig>}}};
  return *instance;
}

// Ranks with the same boot id run under one kernel, so that they can share memory.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// The best backend that every rank supports.
std::string choose_backend(const BootstrapConfig& bootstrap, CommBackend* comm) {
  const std::string nvlink = NVLinkOneSidedAlltoAll::is_platform_supported() ? "1" : "0";
  std::vector<std::string> ranks{nvlink + boot_id()};
  if (comm != nullptr) {
    ranks = detail::checked_allgather(*comm, comm->get_rank(), comm->get_size(), ranks.front());
  }
  const auto everywhere = [&](auto&& predicate) {
    return std::all_of(ranks.begin(), ranks.end(), predicate);
  };
  if (everywhere([](const std::string& rank) { return rank[0] == '1'; })) {
    return "nvlink_one_sided";
  }
  if (everywhere(
          [&](const std::string& rank) { return rank.substr(1) == ranks.front().substr(1); })) {
    return "host";
  }
  throw MoEEpError(
      detail::concat("create_communication: 'auto' needs a backend that all ", bootstrap.world_size,
                     " ranks support, got ranks on several hosts and no NVLink between them"));
}

}  // namespace

void register_communication(const std::string& name, CommunicationFactory factory) {
  const std::lock_guard lock(registry().mutex);
  detail::require(!name.empty() && name != "auto",
                  "register_communication: a name must be other "
                  "than '' and 'auto', got '",
                  name, "'");
  detail::require(registry().factories.emplace(name, std::move(factory)).second,
                  "register_communication: a name may be taken once, got '", name, "' again");
}

std::vector<std::string> available_communication_backends() {
  const std::lock_guard lock(registry().mutex);
  std::vector<std::string> names;
  for (const auto& [name, factory] : registry().factories)
    names.push_back(name);
  return names;
}

std::unique_ptr<MoEEpCommunication> create_communication(const BootstrapConfig& bootstrap,
                                                         const MoEEpCommParams& params,
                                                         const BackendConfig& config) {
  return std::visit(
      [&]<class Config>(const Config& options) -> std::unique_ptr<MoEEpCommunication> {
        if constexpr (std::is_same_v<Config, HostAlltoAllConfig>) {
          return std::make_unique<HostAlltoAll>(bootstrap, params, options);
        } else if constexpr (std::is_same_v<Config, NVLinkOneSidedConfig>) {
          return std::make_unique<NVLinkOneSidedAlltoAll>(bootstrap, params, options);
        } else if constexpr (std::is_same_v<Config, CakeAlltoAllConfig>) {
          return std::make_unique<CakeAlltoAll>(bootstrap, params, options);
        } else {
          return std::make_unique<NVLinkTwoSidedAlltoAll>(bootstrap, params, options);
        }
      },
      config);
}

std::unique_ptr<MoEEpCommunication> create_communication(
    const BootstrapConfig& bootstrap, const MoEEpCommParams& params, const std::string& backend,
    std::shared_ptr<CommBackend> comm_backend) {
  bootstrap.validate();
  const std::string name =
      backend == "auto" ? choose_backend(bootstrap, comm_backend.get()) : backend;
  CommunicationFactory factory;
  {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().factories.find(name);
    if (found != registry().factories.end()) factory = found->second;
  }
  if (!factory) {
    std::string names;
    for (const std::string& known : available_communication_backends())
      names += " " + known;
    throw std::out_of_range("create_communication: backend must be one of" + names + " auto, got " +
                            name);
  }
  return factory(bootstrap, params, std::move(comm_backend));
}

}  // namespace moe_ep
