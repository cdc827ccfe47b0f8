/// @file
/// The NVLink backends. They run where explain_platform() is empty.
#pragma once

#include <string>

#include <moe_ep/communication.hpp>

namespace moe_ep {

/// One-sided puts and gets over NVLink symmetric memory (CUDA, compute capability >= 9.0).
class MOE_EP_API NVLinkOneSidedAlltoAll final : public MoEEpCommunication {
 public:
  NVLinkOneSidedAlltoAll(const BootstrapConfig& bootstrap, const MoEEpCommParams& params,
                         const NVLinkOneSidedConfig& config = {});
  /// Takes a lost rank's place; see HostAlltoAll::rejoin().
  static std::unique_ptr<NVLinkOneSidedAlltoAll> rejoin(const BootstrapConfig& bootstrap,
                                                        const MoEEpCommParams& params,
                                                        const NVLinkOneSidedConfig& config,
                                                        const std::vector<int>& active_ranks,
                                                        std::shared_ptr<CommBackend> comm_backend);
  /// Local; initialises no CUDA context.
  static bool is_platform_supported();
  /// One sentence why not; empty when supported.
  static std::string explain_platform();

 private:
  using MoEEpCommunication::MoEEpCommunication;
};

/// The same contract with kernels generated for exact shapes.
class MOE_EP_API CakeAlltoAll final : public MoEEpCommunication {
 public:
  CakeAlltoAll(const BootstrapConfig& bootstrap, const MoEEpCommParams& params,
               const CakeAlltoAllConfig& config = {});
  static bool is_platform_supported();
  static std::string explain_platform();
};

/// All-to-all-v through bounded FIFOs; memory independent of max_tokens_per_rank.
class MOE_EP_API NVLinkTwoSidedAlltoAll final : public MoEEpCommunication {
 public:
  NVLinkTwoSidedAlltoAll(const BootstrapConfig& bootstrap, const MoEEpCommParams& params,
                         const NVLinkTwoSidedConfig& config = {});
  static bool is_platform_supported();
  static std::string explain_platform();
};

}  // namespace moe_ep
