// Lamport steps on a GPU: the protocol of protocol/transport/lamport*.hpp as one kernel a phase.
//
// Every word that travels says by itself whether it has arrived, so a phase has no flag, no fence
// and no barrier between blocks on its way: small blocks send a piece of a row, poll the words of
// the same piece of every peer's row, pass them on and arm them again. One more block exchanges the
// lines (lamport_lines.cuh): what the step is, and the order that makes re-arming right.
//
//   dispatch  block 0: signature and counts to every peer, await theirs
//             others:  row, ids | ranks visited | words to the peers, own row to the results | poll
//                      every peer's words into the results, arm
//   combine   block 0: what is combined to every peer, await theirs
//             others:  answers to the peers' tokens | poll the answers to the own ones, sum, arm
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
