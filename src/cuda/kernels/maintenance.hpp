// Small kernels around the steps: arming a slice, the default mask, ids of rows without a token.
#pragma once

#include "cuda/kernels/launch.hpp"
#include "protocol/step.hpp"

namespace moe_ep::cuda {

// Arms the own slice as protocol::reset_slice does: the next step is the successor of `epoch`. The
// caller puts a barrier between every rank's reset and the next step.
cudaError_t launch_reset(const protocol::Workspace& workspace, protocol::Epoch epoch,
                         cudaStream_t stream);

// Writes a mask to device memory (LaunchOptions::default_mask), in stream order.
cudaError_t launch_store_mask(RankMask* to, const RankMask& mask, cudaStream_t stream);

// Writes `invalid` over all ids of rows that carry no token of the last dispatch.
// @param ids int32 [num_ranks, tokens_per_rank, top_k]
cudaError_t launch_sanitize(const protocol::Workspace& workspace, std::int32_t* ids,
                            std::int32_t tokens_per_rank, std::int32_t top_k, std::int32_t invalid,
                            const LaunchOptions& options, cudaStream_t stream);

// Makes this rank's running and enqueued steps end soon, whatever they wait for; the slice must be
// reset before the next one. For a stream that no step is on, which must not block.
cudaError_t launch_abandon(const protocol::Workspace& workspace, cudaStream_t side_stream);

// Loads the kernels on the current device.
cudaError_t preload_maintenance();

}  // namespace moe_ep::cuda
