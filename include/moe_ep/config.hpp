/// @file
/// Configuration: what a group is (BootstrapConfig), what a step carries (MoEEpCommParams) and one
/// options struct a backend. All are aggregates; validate() throws std::invalid_argument whose text
/// reads `Type: requirement, got value`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <moe_ep/comm_backend.hpp>
#include <moe_ep/export.hpp>
#include <moe_ep/types.hpp>

namespace moe_ep {

/// This rank's place in the expert-parallel group.
struct MOE_EP_API BootstrapConfig {
  int world_size = 1;  ///< R, 1..256
  int rank = 0;        ///< 0..R-1
  /// Raw cudaStream_t; 0 = the caller's current stream at each call. Unused on CPUs.
  std::uintptr_t stream = 0;
  bool auto_bootstrap = true;  ///< accepted for interface parity; set-up is always automatic
  void* nccl_comm = nullptr;   ///< accepted for interface parity; unused
  /// CUDA ordinal; nullopt = the current device, else LOCAL_RANK, else rank % device count.
  std::optional<int> device = std::nullopt;

  void validate() const;
};

/// Sizes and types that every rank passes alike.
struct MOE_EP_API MoEEpCommParams {
  std::int64_t num_experts = 0;  ///< E, a multiple of R; expert e belongs to rank e / (E / R)
  std::int64_t top_k = 0;        ///< K, 1..64 and at most E
  std::int64_t max_tokens_per_rank = 0;       ///< C, the most tokens one rank sends in a step
  std::int64_t hidden_size = 0;               ///< H, elements of a combined row
  std::optional<DType> dtype = std::nullopt;  ///< BF16, FP16 or FP32; nullopt = BF16
  std::optional<QuantFormat> dispatch_format = std::nullopt;  ///< nullopt = rows of H x dtype
  std::int64_t invalid_expert_id = -1;  ///< marks rows without a token; int32, outside [0, E)

  DType token_dtype() const { return dtype.value_or(kBFloat16); }
  /// Bytes that one token's row and its scales may take; see dispatch_bytes().
  std::int64_t dispatch_bytes_per_token() const;
  void validate() const;
};

/// Options of HostAlltoAll. Steps take Lamport, counted writes or the fence transport, in this
/// order; docs/protocol.md says which steps can.
struct MOE_EP_API HostAlltoAllConfig {
  static constexpr const char* kBackendName = "host";

  /// Room on top of dispatch_bytes_per_token for scales and extra payloads.
  std::int64_t extra_payload_bytes_per_token = 0;
  std::int64_t eplb_stats_num_experts = 0;  ///< 0..E; 0 = no statistics travel
  bool enable_rank_mask = false;
  bool use_low_precision_combine = false;               ///< FP8 wire in combine
  std::shared_ptr<CommBackend> comm_backend = nullptr;  ///< required when world_size > 1
  std::optional<bool> cft = std::nullopt;               ///< counted writes; nullopt: off
  std::int64_t cft_max_tokens_for_dispatch = 128;
  std::int64_t cft_max_tokens_for_combine = 128;
  /// Small steps whose rows carry their own arrival; nullopt: on unless cft.
  std::optional<bool> lamport = std::nullopt;
  /// Largest T of a Lamport step; nullopt: what is fast and within a memory budget.
  std::optional<std::int64_t> lamport_max_tokens = std::nullopt;
  int timeout_sec = 300;  ///< bound of every wait, 1..86400 s
  /// Worker threads a rank uses; nullopt = cores / ranks of this process group, at least 1.
  std::optional<int> num_threads = std::nullopt;
  bool share_workspace = true;  ///< with other instances of the same group and sizes

  void validate(const BootstrapConfig& bootstrap, const MoEEpCommParams& params) const;
};

/// Options of NVLinkOneSidedAlltoAll; fields as in HostAlltoAllConfig where the names are the same.
struct MOE_EP_API NVLinkOneSidedConfig {
  static constexpr const char* kBackendName = "nvlink_one_sided";

  std::int64_t extra_payload_bytes_per_token = 0;
  std::int64_t eplb_stats_num_experts = 0;
  bool enable_rank_mask = false;
  bool use_low_precision_combine = false;
  std::shared_ptr<CommBackend> comm_backend = nullptr;
  std::optional<bool> cft = std::nullopt;
  std::int64_t cft_max_tokens_for_dispatch = 128;
  std::int64_t cft_max_tokens_for_combine = 128;
  std::optional<bool> lamport = std::nullopt;
  std::optional<std::int64_t> lamport_max_tokens = std::nullopt;
  int timeout_sec = 300;
  std::optional<bool> enable_pdl = std::nullopt;  ///< nullopt = compute capability >= 9
  bool share_workspace = true;
  std::optional<int> max_sms = std::nullopt;  ///< most SMs a kernel occupies
  bool require_nvlink = true;                 ///< false: any peer access will do

  void validate(const BootstrapConfig& bootstrap, const MoEEpCommParams& params) const;
};

struct MOE_EP_API CakeAlltoAllConfig {
  static constexpr const char* kBackendName = "cake";

  std::int64_t extra_payload_bytes_per_token = 0;
  std::int64_t eplb_stats_num_experts = 0;
  bool enable_rank_mask = false;
  bool use_low_precision_combine = false;
  std::shared_ptr<CommBackend> comm_backend = nullptr;
  std::optional<bool> enable_pdl = std::nullopt;
  int timeout_sec = 300;
  bool share_workspace = true;
  std::optional<int> max_sms = std::nullopt;

  void validate(const BootstrapConfig& bootstrap, const MoEEpCommParams& params) const;
};

struct MOE_EP_API NVLinkTwoSidedConfig {
  static constexpr const char* kBackendName = "nvlink_two_sided";

  std::shared_ptr<CommBackend> comm_backend = nullptr;

  void validate(const BootstrapConfig& bootstrap, const MoEEpCommParams& params) const;
};

}  // namespace moe_ep
