/// @file
/// What a workspace will take, before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <moe_ep/config.hpp>
#include <moe_ep/export.hpp>

namespace moe_ep {

/// One region of a slice.
struct WorkspaceRegion {
  std::string name;
  std::int64_t offset = 0;  ///< bytes from the slice's start
  std::int64_t bytes = 0;
};

struct WorkspacePlan {
  std::int64_t bytes_per_rank = 0;       ///< of one slice
  std::vector<WorkspaceRegion> regions;  ///< ascending, covering the slice
};

/// The slice that a HostAlltoAll of these sizes allocates on every rank. Local.
MOE_EP_API WorkspacePlan plan_workspace(int world_size, const MoEEpCommParams& params,
                                        const HostAlltoAllConfig& config = {});

}  // namespace moe_ep
