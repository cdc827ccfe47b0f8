#include "cuda/kernels/maintenance.hpp"

#include "cuda/device/memory.cuh"
#include "cuda/kernels/lamport.hpp"
#include "protocol/one_sided.hpp"

namespace moe_ep::cuda {
namespace {

struct ResetArgs {
  protocol::Workspace workspace;
  Epoch epoch = 0;
};

// One block. Flags of blocks and chunks read `epoch`, too: no later step takes them for its own.
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    reset_kernel(const __grid_constant__ ResetArgs args) {
  const protocol::Workspace& workspace = args.workspace;
  const std::int32_t num_ranks = workspace.layout.num_ranks;
  auto* header = reinterpret_cast<std::uint32_t*>(workspace.header());
  constexpr std::uint32_t kHeaderWords = sizeof(protocol::SliceHeader) / 4;
  constexpr std::uint32_t kLineWords = sizeof(protocol::PeerLine) / 4;
  if (threadIdx.x < kHeaderWords) header[threadIdx.x] = 0;
  auto* lines = reinterpret_cast<std::uint32_t*>(workspace.own() + workspace.layout.lines);
  for (std::uint32_t i = threadIdx.x; i < kLineWords * num_ranks; i += blockDim.x)
    lines[i] = 0;
  for (std::int32_t rank = static_cast<std::int32_t>(threadIdx.x); rank < num_ranks;
       rank += static_cast<std::int32_t>(blockDim.x)) {
    workspace.recv_counts()[rank] = 0;
    workspace.send_counts()[rank] = 0;
  }
  auto* flags = reinterpret_cast<std::uint32_t*>(workspace.own() + workspace.layout.arrivals);
  const std::int64_t num_flags = static_cast<std::int64_t>(num_ranks) *
                                 (protocol::kArrivals + workspace.layout.chunks_per_rank());
  static_assert(4 * protocol::kArrivals % protocol::kAlign == 0);  // the chunks follow at once
  for (std::int64_t i = threadIdx.x; i < num_flags; i += blockDim.x)
    flags[i] = args.epoch;
  __syncthreads();
  if (threadIdx.x == 0) {
    workspace.header()->magic = protocol::kSliceMagic;
    workspace.header()->epoch = args.epoch;
    workspace.header()->combined = args.epoch;
  }
  for (std::int32_t rank = static_cast<std::int32_t>(threadIdx.x); rank < num_ranks;
       rank += static_cast<std::int32_t>(blockDim.x)) {
    protocol::PeerLine* line = workspace.line(workspace.rank, rank);
    line->dispatch_flag = args.epoch;
    line->blocks_flag = args.epoch;
    line->combine_flag = args.epoch;
    line->landing_flag = args.epoch;
    line->done_flag = args.epoch;
    line->edge_flag = args.epoch;
  }
}

struct MaskArgs {
  RankMask* to = nullptr;
  RankMask mask;
};

__global__ void mask_kernel(const __grid_constant__ MaskArgs args) {
  args.to->words[threadIdx.x] = args.mask.words[threadIdx.x];
}

struct SanitizeArgs {
  protocol::Workspace workspace;
  std::int32_t* ids = nullptr;
  std::int32_t tokens_per_rank = 0;
  std::int32_t top_k = 0;
  std::int32_t invalid = 0;
  bool early = false;
};

__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    sanitize_kernel(const __grid_constant__ SanitizeArgs args) {
  if (args.early) launch_dependents();
  wait_for_producers();
  const std::int64_t block_ids = static_cast<std::int64_t>(args.tokens_per_rank) * args.top_k;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::int32_t src = 0; src < args.workspace.layout.num_ranks; ++src) {
    std::int32_t* ids = args.ids + src * block_ids;
    const std::int64_t held = static_cast<std::int64_t>(protocol::num_received(
                                  args.workspace, args.tokens_per_rank, src)) *
                              args.top_k;
    for (std::int64_t i = held + first; i < block_ids;
         i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
      ids[i] = args.invalid;
    }
  }
}

}  // namespace

cudaError_t launch_reset(const protocol::Workspace& workspace, protocol::Epoch epoch,
                         cudaStream_t stream) {
  const cudaError_t error =
      enqueue(reset_kernel, 1, kMaxBlockThreads, 0, Pdl::kOff, stream, ResetArgs{workspace, epoch});
  if (error != cudaSuccess || !workspace.layout.lamport.enabled()) return error;
  return launch_lamport_reset(workspace, epoch, stream);
}

cudaError_t launch_store_mask(RankMask* to, const RankMask& mask, cudaStream_t stream) {
  return enqueue(mask_kernel, 1, kRankMaskWords, 0, Pdl::kOff, stream, MaskArgs{to, mask});
}

cudaError_t launch_sanitize(const protocol::Workspace& workspace, std::int32_t* ids,
                            std::int32_t tokens_per_rank, std::int32_t top_k, std::int32_t invalid,
                            const LaunchOptions& options, cudaStream_t stream) {
  const std::int64_t rounds =
      (static_cast<std::int64_t>(tokens_per_rank) * top_k + kMaxBlockThreads - 1) /
      kMaxBlockThreads;
  const std::int32_t blocks = options.max_blocks();
  return enqueue(sanitize_kernel, rounds < blocks ? static_cast<std::int32_t>(rounds) : blocks,
                 kMaxBlockThreads, 0, options.pdl, stream,
                 SanitizeArgs{workspace, ids, tokens_per_rank, top_k, invalid, options.early()});
}

cudaError_t launch_abandon(const protocol::Workspace& workspace, cudaStream_t side_stream) {
  return cudaMemsetAsync(&workspace.header()->failed, 0xff, sizeof(std::uint32_t), side_stream);
}

cudaError_t preload_maintenance() {
  for (const void* kernel :
       {reinterpret_cast<const void*>(reset_kernel), reinterpret_cast<const void*>(mask_kernel),
        reinterpret_cast<const void*>(sanitize_kernel)}) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace moe_ep::cuda
