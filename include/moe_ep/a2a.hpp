/// @file
/// The stateless family `moe_a2a_*`: dispatch and combine over a workspace tensor that the caller
/// owns. These are what the classes of communication.hpp are made of, without round state.
///
/// The workspace is a uint8 tensor [R, bytes] whose row r is rank r's slice, visible to every rank
/// (threads of one process, or shared memory). Protocol of use, on every rank:
///
///   1. moe_a2a_initialize, then a barrier between all ranks
///   2. repeatedly: moe_a2a_dispatch, moe_a2a_combine (paired by the caller; no order is checked)
///
/// CPU workspaces: calls run to completion. CUDA workspaces: dispatch, combine and sanitize only
/// enqueue on `stream`; initialize waits for it. Several ranks of one process may share a GPU if
/// all of them have initialised before the first dispatch. Waits are bounded by MOE_EP_TIMEOUT_SEC
/// (300 s); after a MoEEpTimeoutError or MoEEpMismatchError, which on CUDA comes with the next
/// call, initialise again on every rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <moe_ep/error.hpp>
#include <moe_ep/export.hpp>
#include <moe_ep/rank_mask.hpp>
#include <moe_ep/tensor.hpp>

namespace moe_ep {

/// Which kernels serve a workspace; the same in every call on it.
enum class A2aBackend : std::uint8_t { kTrtllm = 0, kCake = 1 };

/// What moe_a2a_initialize tells the other calls: sizes and offsets, all int64.
struct A2aMetainfo {
  // X(field) in the order of the int64 tensor that Python sees.
#define MOE_EP_FOR_EACH_METAINFO(X) \
  X(magic)                          \
  X(ep_size)                        \
  X(max_num_tokens)                 \
  X(eplb_stats_num_experts)         \
  X(slice_bytes)                    \
  X(combine_offset)                 \
  X(backend)
#define MOE_EP_FIELD(name) std::int64_t name = 0;
  MOE_EP_FOR_EACH_METAINFO(MOE_EP_FIELD)
#undef MOE_EP_FIELD
  static constexpr int kNumFields = 7;
};

/// Bytes one slice needs.
/// @param total_dispatch_payload_size_per_token sum of the payload rows' bytes, ids included
/// @param combine_payload_size_per_token bytes of one row of the combine payload
MOE_EP_API std::int64_t moe_a2a_get_workspace_size_per_rank(
    std::int64_t ep_size, std::int64_t max_num_tokens,
    std::int64_t total_dispatch_payload_size_per_token, std::int64_t combine_payload_size_per_token,
    std::int64_t eplb_stats_num_experts = 0, A2aBackend backend = A2aBackend::kTrtllm);

/// Arms rank `ep_rank`'s slice. @throws std::invalid_argument workspace of a wrong shape or too
/// small
MOE_EP_API A2aMetainfo moe_a2a_initialize(const TensorView& workspace, std::int64_t ep_rank,
                                          std::int64_t ep_size, std::int64_t max_num_tokens,
                                          std::int64_t eplb_stats_num_experts = 0,
                                          A2aBackend backend = A2aBackend::kTrtllm,
                                          std::uintptr_t stream = 0);

struct A2aDispatchArgs {
  TensorView token_selected_experts;       ///< [n, top_k] int32 or int64
  std::vector<TensorView> input_payloads;  ///< 1..8 tensors [n, *]
  TensorView workspace;
  A2aMetainfo metainfo;
  std::int64_t runtime_max_tokens_per_rank = 0;  ///< T, equal on all ranks, <= max_num_tokens
  std::int64_t ep_rank = 0;
  std::int64_t ep_size = 1;
  std::int64_t top_k = 1;
  std::int64_t num_experts = 1;
  std::optional<TensorView> eplb_local_stats = std::nullopt;  ///< int32 [eplb_stats_num_experts]
  bool enable_rank_mask = false;
  std::optional<RankMask> active_rank_mask = std::nullopt;
  A2aBackend backend = A2aBackend::kTrtllm;
  std::uintptr_t stream = 0;  ///< raw cudaStream_t to enqueue on; unused on CPUs
};

struct A2aDispatchResult {
  std::vector<TensorView> output_payloads;  ///< workspace views [R, T, *], one per input
  std::int64_t combine_payload_offset = 0;  ///< bytes from the start of the own slice; constant
  std::optional<TensorView> eplb_gathered_stats = std::nullopt;  ///< int32 view [R, E']
};

MOE_EP_API A2aDispatchResult moe_a2a_dispatch(const A2aDispatchArgs& args);

/// What one combine takes.
struct A2aCombineArgs {
  TensorView payload;  ///< [R, T, H] or [R*T, H]; BF16, FP16 or FP32
  std::int64_t local_num_tokens = 0;
  TensorView workspace;
  A2aMetainfo metainfo;
  std::int64_t runtime_max_tokens_per_rank = 0;
  std::int64_t ep_rank = 0;
  std::int64_t ep_size = 1;
  std::int64_t top_k = 1;
  std::int64_t combine_payload_offset = 0;  ///< as moe_a2a_dispatch returned it
  bool payload_in_workspace = false;        ///< payload is the view at combine_payload_offset
  /// Result [n, H] in BF16, FP16 or FP32; or quantised: Float8E4M3FN [n, H] (MXFP8) or UInt8 /
  /// Float4E2M1FNx2 [n, H/2] (MXFP4, NVFP4).
  TensorView output;
  /// Block scales of a quantised output: UInt8 = MX (UE8M0 per 32), Float8E4M3FN = NVFP4 (per 16).
  std::optional<TensorView> output_scales = std::nullopt;
  double output_scalar_scale = 1.0;
  SfLayout sf_layout = SfLayout::kLinear;
  bool use_low_precision = false;  ///< FP8 wire
  bool enable_rank_mask = false;
  std::optional<RankMask> active_rank_mask = std::nullopt;
  A2aBackend backend = A2aBackend::kTrtllm;
  std::uintptr_t stream = 0;  ///< raw cudaStream_t to enqueue on; unused on CPUs
};

MOE_EP_API void moe_a2a_combine(const A2aCombineArgs& args);

/// Writes `invalid_expert_id` over every id in rows that received no token in the last dispatch.
/// @param expert_ids workspace view [R, T, top_k] int32 that moe_a2a_dispatch returned
MOE_EP_API void moe_a2a_sanitize_expert_ids(const TensorView& expert_ids,
                                            const TensorView& workspace,
                                            const A2aMetainfo& metainfo, std::int64_t ep_rank,
                                            std::int64_t invalid_expert_id,
                                            A2aBackend backend = A2aBackend::kTrtllm,
                                            std::uintptr_t stream = 0);

/// A view [*leading_shape, (slice_end - slice_start) / prod(leading_shape) / itemsize] of the bytes
/// slice_start..slice_end, counted from the start of the tensor passed: for an offset that counts
/// from a slice, pass row ep_rank of the workspace.
MOE_EP_API TensorView moe_a2a_wrap_payload_tensor_in_workspace(
    const TensorView& workspace, const std::vector<std::int64_t>& leading_shape,
    std::int64_t slice_start, std::int64_t slice_end, DType dtype);

/// Mask of `ranks`. @throws std::invalid_argument for a rank outside [0, ep_size)
MOE_EP_API RankMask moe_a2a_active_rank_mask(const std::vector<int>& ranks, std::int64_t ep_size);

}  // namespace moe_ep
