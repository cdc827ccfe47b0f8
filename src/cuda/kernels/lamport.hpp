// Lamport steps on a GPU: the protocol of protocol/transport/lamport*.hpp as one kernel a phase.
//
// Every word that travels says by itself whether it has arrived, so a phase has no flag and no
// barrier between blocks on its way, and nobody waits for a fence: small blocks send a piece of a
// row, poll the words of the same piece of every peer's row, pass them on and arm them again.
//
//   lamport_lines.cuh     what the step is, how many rows come
//   lamport_edge.cuh      the order that makes writing words again right
//   lamport_tags.cuh      ids, weights, scales
//   lamport_dispatch.cuh  rows on their way out
//   lamport_combine.cuh   answers on their way back
//   lamport_sums.cuh      and added up
//   lamport_plan.hpp      how much of a row a block has
#pragma once

#include "cuda/kernels/launch.hpp"
#include "protocol/output.hpp"
#include "protocol/step.hpp"

namespace moe_ep::cuda {

// Enqueue one rank's phase of a step whose signature says Transport::kLamport; allocate nothing,
// never wait. `params.timeout_ns` bounds the waits.
cudaError_t launch_lamport_dispatch(const protocol::DispatchParams& params,
                                    const LaunchOptions& options, cudaStream_t stream);
cudaError_t launch_lamport_combine(const protocol::CombineParams& params,
                                   const CombineOutput& output, const LaunchOptions& options,
                                   cudaStream_t stream);

// Arms the own landing rows and stamps all tags (protocol::reset_lamport): part of a reset.
cudaError_t launch_lamport_reset(const protocol::Workspace& workspace, protocol::Epoch epoch,
                                 cudaStream_t stream);

// Loads the kernels on the current device.
cudaError_t preload_lamport();

}  // namespace moe_ep::cuda
