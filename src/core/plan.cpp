#include <moe_ep/plan.hpp>

#include "core/message.hpp"
#include "core/options.hpp"
#include "core/transports.hpp"
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
  const detail::Options options = detail::make_options(config);
  const detail::RowSizes rows = detail::row_sizes(params, config.extra_payload_bytes_per_token);
  const WorkspaceLayout layout = detail::make_layout(world_size, params, options);
  const std::int64_t total = layout.slice_bytes;

  WorkspacePlan plan;
  plan.bytes_per_rank = total;
  const std::int64_t dispatch =
      total - WorkspaceLayout::dispatch_bytes(world_size, layout.max_tokens, rows.dispatch);
  const std::pair<const char*, std::int64_t> starts[] = {
      {"header", 0},
      {"lines", layout.lines},
      {"recv_counts", layout.recv_counts},
      {"send_counts", layout.send_counts},
      {"hops", layout.hops},
      {"arrivals", layout.arrivals},
      {"chunks", layout.chunks},
      {"eplb", layout.eplb},
      {"lamport_lines", layout.lamport.lines},
      {"lamport_tags", layout.lamport.tags},
      {"lamport_rows", layout.lamport.rows},
      {"lamport_combine", layout.lamport.combine},
      {"counters", layout.counters},
      {"accounts", layout.accounts},
      {"landing", layout.landing},
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
