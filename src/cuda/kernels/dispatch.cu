#include "cuda/kernels/dispatch.hpp"

#include "cuda/kernels/dispatch_large.cuh"
#include "cuda/kernels/dispatch_small.cuh"
#include "cuda/kernels/lamport.hpp"

namespace moe_ep::cuda {
namespace {

using Kernel = void (*)(DispatchArgs);

// A lane holds one vector of a row in small steps, where latency counts, and four in large ones.
constexpr std::int32_t kSmallVectors = 1;
constexpr std::int32_t kLargeVectors = 4;

Kernel kernel_for(std::int32_t num_ranks, bool small) {
  if (num_ranks > kSmallRanks) return dispatch_large_kernel<kMaxRanks / 32, kLargeVectors>;
  return small ? dispatch_small_kernel<kSmallVectors> : dispatch_large_kernel<1, kLargeVectors>;
}

// Widths and pieces of the payloads for `vectors` a lane.
void plan_pieces(DispatchArgs& args, std::int32_t vectors) {
  const protocol::DispatchParams& params = args.params;
  const auto slices = reinterpret_cast<std::uint64_t>(params.workspace.base) |
                      static_cast<std::uint64_t>(params.workspace.slice_stride);
  for (std::int32_t payload = 0; payload < kMaxPayloads; ++payload) {
    args.first_piece[payload] = args.num_pieces;
    if (payload >= params.num_payloads) continue;
    const protocol::Payload& from = params.payloads[payload];
    const auto row_bytes = static_cast<std::uint64_t>(params.row_bytes(payload));
    args.width[payload] =
        payload == params.ids_payload
            ? 4
            : row_width(slices | static_cast<std::uint64_t>(params.placement.offsets[payload]) |
                        reinterpret_cast<std::uint64_t>(from.rows) |
                        static_cast<std::uint64_t>(from.stride) | row_bytes);
    const auto piece = static_cast<std::uint64_t>(kWarp * vectors * args.width[payload]);
    args.num_pieces += static_cast<std::int32_t>((row_bytes + piece - 1) / piece);
  }
  args.pieces = FastDivide::make(args.num_pieces);
}

}  // namespace

cudaError_t launch_dispatch(const protocol::DispatchParams& params, const LaunchOptions& options,
                            cudaStream_t stream, const DispatchTuning& tuning) {
  if (params.signature.fields[protocol::kTransport] ==
      static_cast<std::int32_t>(Transport::kLamport)) {
    return launch_lamport_dispatch(params, options, stream);
  }
  DispatchArgs args;
  args.params = params;
  args.default_mask = options.default_mask;
  args.record = options.record;
  args.ownership = FastOwnership::make(params.ownership);
  args.early = options.early();
  const std::int32_t num_ranks = params.workspace.layout.num_ranks;
  const std::int32_t num_tokens = params.num_tokens > 1 ? params.num_tokens : 1;
  if (num_tokens <= options.max_blocks() && num_ranks <= kSmallRanks) {
    plan_pieces(args, kSmallVectors);
    // A warp a piece, and some for the peers.
    std::int32_t warps = args.num_pieces + num_ranks;
    if (warps < 4) warps = 4;
    if (warps > kMaxBlockThreads / kWarp) warps = kMaxBlockThreads / kWarp;
    return enqueue(kernel_for(num_ranks, true), num_tokens, warps * kWarp, 0, options.pdl, stream,
                   args);
  }
  plan_pieces(args, kLargeVectors);
  const std::int32_t max_blocks = options.max_blocks(tuning.threads);
  args.tokens_per_block = (num_tokens + max_blocks - 1) / max_blocks;
  const std::int32_t hops = params.workspace.layout.hops_per_token();
  args.hops_per_token = params.top_k < hops ? params.top_k : hops;
  args.batch_tokens = kRouteHops / args.hops_per_token / kWarp * kWarp;
  if (args.batch_tokens > kRouteGroups * kWarp) args.batch_tokens = kRouteGroups * kWarp;
  if (args.batch_tokens > tuning.threads) args.batch_tokens = tuning.threads;
  return enqueue(kernel_for(num_ranks, false),
                 (num_tokens + args.tokens_per_block - 1) / args.tokens_per_block, tuning.threads,
                 0, options.pdl, stream, args);
}

cudaError_t preload_dispatch() {
  for (const std::int32_t num_ranks : {1, kMaxRanks}) {
    for (const bool small : {true, false}) {
      cudaFuncAttributes attributes;
      const cudaError_t error = cudaFuncGetAttributes(
          &attributes, reinterpret_cast<const void*>(kernel_for(num_ranks, small)));
      if (error != cudaSuccess) return error;
    }
  }
  return preload_lamport();
}

}  // namespace moe_ep::cuda
