/// @file
/// HostAlltoAll: the protocol on plain CPUs, ranks as processes of one host or threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <moe_ep/communication.hpp>

namespace moe_ep {

/// Dispatch and combine of CPU tensors over shared memory.
///
/// Construction is collective: bad values, differing parameters or failed allocations on one rank
/// throw on every rank.
class MOE_EP_API HostAlltoAll final : public MoEEpCommunication {
 public:
  HostAlltoAll(const BootstrapConfig& bootstrap, const MoEEpCommParams& params,
               const HostAlltoAllConfig& config = {});

  /// Re-enters a group after a restart; pairs with the other active ranks' recover().
  static std::unique_ptr<HostAlltoAll> rejoin(const BootstrapConfig& bootstrap,
                                              const MoEEpCommParams& params,
                                              const HostAlltoAllConfig& config,
                                              const std::vector<int>& active_ranks,
                                              std::shared_ptr<CommBackend> comm_backend);

  /// True on Linux. Local.
  static bool is_platform_supported();
  /// One sentence why not; empty when supported.
  static std::string explain_platform();

 private:
  using MoEEpCommunication::MoEEpCommunication;
};

}  // namespace moe_ep
