// Options: what the backends' configs have in common, brought to one form.
#pragma once

#include <string>

#include <moe_ep/config.hpp>

#include "backend/platform.hpp"

namespace moe_ep::detail {

struct Options {
  std::string class_name;  // for messages
  std::string backend_name;
  const Platform* platform = nullptr;
  std::int64_t extra_payload_bytes_per_token = 0;
  std::int64_t eplb_stats_num_experts = 0;
  bool enable_rank_mask = false;
  bool use_low_precision_combine = false;
  std::shared_ptr<CommBackend> comm;
  std::optional<bool> cft;
  std::int64_t cft_max_tokens_for_dispatch = 128;
  std::int64_t cft_max_tokens_for_combine = 128;
  std::optional<bool> lamport;
  std::optional<std::int64_t> lamport_max_tokens;
  int timeout_sec = 300;
  bool share_workspace = true;
  std::optional<int> num_threads;  // hosts
  std::optional<bool> enable_pdl;  // devices, as max_sms and require_nvlink
  std::optional<int> max_sms;
  bool require_nvlink = true;
};

Options make_options(const HostAlltoAllConfig& config);
Options make_options(const NVLinkOneSidedConfig& config);

// Bytes of the widest rows that steps of these params and options carry.
struct RowSizes {
  std::int64_t dispatch = 0;  // hidden, scales, extras, ids and weights of one token
  std::int64_t combine = 0;   // one row of the combine region
};
RowSizes row_sizes(const MoEEpCommParams& params, std::int64_t extra_payload_bytes_per_token);

}  // namespace moe_ep::detail
