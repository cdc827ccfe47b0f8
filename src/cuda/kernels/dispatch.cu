#include "cuda/kernels/dispatch.hpp"

#include "cuda/kernels/dispatch_large.cuh"
#include "cuda/kernels/dispatch_small.cuh"
#include "cuda/kernels/lamport.hpp"

namespace moe_ep::cuda {
namespace {

using Kernel = void (*)(DispatchArgs);

// A lane holds one vector of a row in small steps, where latency counts, two where as many blocks
// shall share a multiprocessor, and four in large ones.
constexpr std::int32_t kLargeVectors = 4;

Kernel small_kernel(std::int32_t vectors) {
  return vectors == 1 ? dispatch_small_kernel<1> : dispatch_small_kernel<2>;
}
Kernel large_kernel(std::int32_t num_ranks) {
  return num_ranks > kSmallRanks ? dispatch_large_kernel<kMaxRanks / 32, kLargeVectors>
                                 : dispatch_large_kernel<1, kLargeVectors>;
}

std::int32_t smaller(std::int32_t a, std::int32_t b) {
  return a < b ? a : b;
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
  const std::uint64_t id_bytes = params.wide_ids ? 8 : 4;
  args.ids_width = row_width(reinterpret_cast<std::uint64_t>(params.topk_ids) |
                             static_cast<std::uint64_t>(params.topk_ids_stride) |
                             id_bytes * static_cast<std::uint64_t>(params.top_k));
  const std::int32_t num_ranks = params.workspace.layout.num_ranks;
  const std::int32_t num_tokens = params.num_tokens > 1 ? params.num_tokens : 1;
  for (const std::int32_t vectors : {1, 2}) {
    const std::int32_t threads = kMaxBlockThreads / vectors;
    const std::int32_t most = smaller(options.max_blocks(threads), protocol::kArrivals);
    if (num_tokens > most || num_ranks > kSmallRanks) continue;
    // Half a multiprocessor may be no use to another rank's block (launch.hpp, rule 1).
    if (vectors > 1 && options.ranks_on_device > 1) continue;
    plan_pieces(args, vectors);
    args.rehearse = options.rehearses(num_tokens);
    // A warp a piece, and some for the peers.
    std::int32_t warps = smaller(args.num_pieces + num_ranks, threads / kWarp);
    if (warps < 4) warps = 4;
    return enqueue(small_kernel(vectors), num_tokens, warps * kWarp, 0, options.pdl, stream, args);
  }
  plan_pieces(args, kLargeVectors);
  const std::int32_t max_blocks = smaller(options.max_blocks(tuning.threads), protocol::kArrivals);
  args.tokens_per_block = (num_tokens + max_blocks - 1) / max_blocks;
  const std::int32_t hops = params.workspace.layout.hops_per_token();
  args.hops_per_token = params.top_k < hops ? params.top_k : hops;
  args.batch_tokens = kRouteHops / args.hops_per_token / kWarp * kWarp;
  if (args.batch_tokens > kRouteGroups * kWarp) args.batch_tokens = kRouteGroups * kWarp;
  if (args.batch_tokens > tuning.threads) args.batch_tokens = tuning.threads;
  const std::int32_t blocks = (num_tokens + args.tokens_per_block - 1) / args.tokens_per_block;
  args.rehearse = options.early();
  return enqueue(large_kernel(num_ranks), blocks, tuning.threads, 0, options.pdl, stream, args);
}

cudaError_t preload_dispatch() {
  for (const Kernel kernel :
       {small_kernel(1), small_kernel(2), large_kernel(1), large_kernel(kMaxRanks)}) {
    cudaFuncAttributes attributes;
    const cudaError_t error =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
    if (error != cudaSuccess) return error;
  }
  return preload_lamport();
}

}  // namespace moe_ep::cuda
