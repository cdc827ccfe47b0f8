#include <moe_ep/plan.hpp>

#include "core/message.hpp"
#include "core/options.hpp"
#include "protocol/layout.hpp"

namespace moe_ep {

WorkspacePlan plan_workspace(int world_size, const MoEEpCommParams& params,
                             const HostAlltoAllConfig& config) {
  BootstrapConfig bootstrap;
  bootstrap.world_size = world_size;
  bootstrap.validate();
  params.validate();
  config.validate(bootstrap, params);

  using protocol::WorkspaceLayout;
  const detail::RowSizes rows = detail::row_sizes(params, config.extra_payload_bytes_per_token);
  const auto max_tokens = static_cast<std::int32_t>(params.max_tokens_per_rank);
  const auto eplb = static_cast<std::int32_t>(config.eplb_stats_num_experts);
  const std::int64_t total =
      WorkspaceLayout::required_bytes(world_size, max_tokens, eplb, rows.dispatch, rows.combine);
  const WorkspaceLayout layout = WorkspaceLayout::make(world_size, max_tokens, eplb, total);

  WorkspacePlan plan;
  plan.bytes_per_rank = total;
  const std::int64_t dispatch =
      total - WorkspaceLayout::dispatch_bytes(world_size, max_tokens, rows.dispatch);
  const std::pair<const char*, std::int64_t> starts[] = {
      {"header", 0},
      {"lines", layout.lines},
      {"recv_counts", layout.recv_counts},
      {"send_counts", layout.send_counts},
      {"hops", layout.hops},
      {"chunks", layout.chunks},
      {"eplb", layout.eplb},
      {"combine", layout.combine},
      {"dispatch", dispatch},
  };
  const int count = static_cast<int>(std::size(starts));
  for (int index = 0; index < count; ++index) {
    const std::int64_t end = index + 1 < count ? starts[index + 1].second : total;
    plan.regions.push_back({starts[index].first, starts[index].second, end - starts[index].second});
  }
  return plan;
}

}  // namespace moe_ep
