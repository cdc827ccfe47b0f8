// Dispatch on a GPU: the protocol's fence dispatch (protocol/one_sided.hpp) as one kernel.
//
// A block owns a contiguous range of tokens. It counts the earlier tokens by itself instead of
// asking other blocks, so no block waits for another before it sends:
//
//   count earlier tokens | route own ones by ballots | put their rows, one copy a rank they visit |
//   last range: counts, signature, ids of rows without a token | fence | flags to all active ranks
//   last block: await the flags of all blocks of all ranks and check what they say
//
// Every block has flags of its own (dispatch_flags.cuh), so that none of them waits for the others'
// fences and a counter before the peers hear of it. The others are gone while the last one waits.
// Ids of rows without a token are written by their sender, so that nothing is left to do once the
// flags are there; ranks that take no part are marked by the receiver.
//
// After a combine whose peers pushed rows (SliceHeader::drain), blocks first wait until every peer
// has read what was pushed to it, because rows of this step may land on the same bytes.
#pragma once

#include "cuda/kernels/launch.hpp"
#include "protocol/step.hpp"

namespace moe_ep::cuda {

// What measurements choose.
struct DispatchTuning {
  std::int32_t threads = 1024;  // of a block in large steps; a power of two, 256 at least
};

// Enqueues one rank's dispatch. Allocates nothing, never waits. `params.timeout_ns` bounds the
// wait.
cudaError_t launch_dispatch(const protocol::DispatchParams& params, const LaunchOptions& options,
                            cudaStream_t stream, const DispatchTuning& tuning = {});

// Loads the kernels on the current device, so that a first step does not have to.
cudaError_t preload_dispatch();

}  // namespace moe_ep::cuda
