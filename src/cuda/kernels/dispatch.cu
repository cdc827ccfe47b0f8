#include "cuda/kernels/dispatch.hpp"

#include "cuda/kernels/dispatch_args.cuh"
#include "cuda/kernels/dispatch_await.cuh"
#include "cuda/kernels/dispatch_put.cuh"
#include "cuda/kernels/dispatch_route.cuh"

namespace moe_ep::cuda {
namespace {

// A token's row is spread over more lanes in small steps, where latency counts, than in large ones.
constexpr int kSmallVectors = 1;
constexpr int kLargeVectors = 4;

template <int Words, int Vectors>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    dispatch_kernel(const __grid_constant__ DispatchArgs args) {
  __shared__ RouteTables tables;
  const protocol::DispatchParams& params = args.params;
  const protocol::Workspace& workspace = params.workspace;
  const std::int32_t num_ranks = workspace.layout.num_ranks;
  if (args.early) launch_dependents();
  for (std::int32_t rank = static_cast<std::int32_t>(threadIdx.x); rank < num_ranks;
       rank += static_cast<std::int32_t>(blockDim.x)) {
    tables.next_row[rank] = 0;
  }
  __syncthreads();
  wait_for_producers();

  protocol::SliceHeader* header = workspace.header();
  const StepState state = StepState::load(header);
  const bool drain = header->drain != 0;
  const RankMask active = load_mask(args.default_mask, params.active);
  const auto active_bits = to_bits<Words>(active);
  if (threadIdx.x < kRankMaskWords) {
    tables.active.words[threadIdx.x] =
        args.default_mask != nullptr ? args.default_mask->words[threadIdx.x]
                                     : params.active.words[threadIdx.x];
  }
  const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) * args.tokens_per_block;
  const std::int32_t end = min(begin + args.tokens_per_block, params.num_tokens);

  // In small steps the first rows are on their way while the block finds out where they go.
  constexpr bool kEarlyLoads = Vectors == kSmallVectors;
  Piece<Vectors> piece;
  if (kEarlyLoads && begin + warp_id() / args.num_pieces() < end) {
    const PutUnit put = put_unit<Vectors>(args, warp_id());
    load_unit(piece, args, put, begin + put.local);
  }
  // The same in all blocks: only the last one to arrive changes the word.
  if (drain) {
    __syncthreads();
    if (!drain_peers(tables, params, state.epoch, args.record)) return;
  }

  count_earlier<Words>(tables, args, active_bits, begin);
  for (std::int32_t first = begin; first < end; first += args.batch_tokens) {
    const std::int32_t batch_end = min(first + args.batch_tokens, end);
    const auto ranks = vote<Words>(tables, args, active_bits, first, batch_end);
    if (__syncthreads_or(state.failed)) return;  // also if a thread saw it that another did not
    place_groups(tables, num_ranks, batch_end - first);
    __syncthreads();
    list_hops<Words>(tables, args, ranks, first, batch_end);
    __syncthreads();
    const std::int32_t num_units = (batch_end - first) * args.num_pieces();
    for (std::int32_t unit = warp_id(); unit < num_units; unit += num_warps()) {
      const PutUnit put = put_unit<Vectors>(args, unit);
      if (!kEarlyLoads || first != begin || unit != warp_id()) {
        load_unit(piece, args, put, first + put.local);
      }
      put_piece(piece, tables, args, put);
    }
  }
  if (__syncthreads_or(state.failed)) return;
  if (blockIdx.x == gridDim.x - 1) put_summary(tables, params);
  if (blockIdx.x == 0) put_stats(tables, params);

  if (!arrive_last(tables.is_last, &header->dispatch_arrivals)) return;
  const Epoch epoch = protocol::next_epoch(state.epoch);
  raise_flags(tables, params, epoch);
  if (threadIdx.x < kRankMaskWords) {
    header->active.words[threadIdx.x] = tables.active.words[threadIdx.x];
  }
  if (threadIdx.x == 0) {
    header->epoch = epoch;
    header->drain = 0;
    header->dispatch_arrivals = 0;
  }
  accept_peers(tables, params, epoch, args.record);
}

using Kernel = void (*)(DispatchArgs);

Kernel kernel_for(std::int32_t num_ranks, bool small) {
  if (num_ranks <= 32) {
    return small ? dispatch_kernel<1, kSmallVectors> : dispatch_kernel<1, kLargeVectors>;
  }
  return small ? dispatch_kernel<kMaxRanks / 32, kSmallVectors>
               : dispatch_kernel<kMaxRanks / 32, kLargeVectors>;
}

// Widths and pieces of the payloads for `vectors` a lane.
void plan_pieces(DispatchArgs& args, std::int32_t vectors) {
  const protocol::DispatchParams& params = args.params;
  const auto slices = reinterpret_cast<std::uint64_t>(params.workspace.base) |
                      static_cast<std::uint64_t>(params.workspace.slice_stride);
  for (std::int32_t payload = 0; payload < params.num_payloads; ++payload) {
    const protocol::Payload& from = params.payloads[payload];
    const auto row_bytes = static_cast<std::uint64_t>(params.row_bytes(payload));
    args.width[payload] =
        payload == params.ids_payload
            ? 4
            : row_width(slices | static_cast<std::uint64_t>(params.placement.offsets[payload]) |
                        reinterpret_cast<std::uint64_t>(from.rows) |
                        static_cast<std::uint64_t>(from.stride) | row_bytes);
    const auto piece = static_cast<std::uint64_t>(kWarp * vectors * args.width[payload]);
    args.first_piece[payload + 1] =
        args.first_piece[payload] + static_cast<std::int32_t>((row_bytes + piece - 1) / piece);
  }
}

}  // namespace

cudaError_t launch_dispatch(const protocol::DispatchParams& params, const LaunchOptions& options,
                            cudaStream_t stream) {
  DispatchArgs args;
  args.params = params;
  args.default_mask = options.default_mask;
  args.record = options.record;
  args.ownership = FastOwnership::make(params.ownership);
  args.early = options.early();
  const std::int32_t num_tokens = params.num_tokens > 1 ? params.num_tokens : 1;
  const std::int32_t max_blocks = options.max_blocks();
  args.tokens_per_block = (num_tokens + max_blocks - 1) / max_blocks;
  const std::int32_t blocks = (num_tokens + args.tokens_per_block - 1) / args.tokens_per_block;
  const std::int32_t hops = params.workspace.layout.hops_per_token();
  args.hops_per_token = params.top_k < hops ? params.top_k : hops;
  args.batch_tokens = kRouteHops / args.hops_per_token / kWarp * kWarp;
  if (args.batch_tokens > kRouteGroups * kWarp) args.batch_tokens = kRouteGroups * kWarp;
  const bool small = args.tokens_per_block == 1;
  plan_pieces(args, small ? kSmallVectors : kLargeVectors);
  return enqueue(kernel_for(params.workspace.layout.num_ranks, small), blocks, kMaxBlockThreads, 0,
                 options.pdl, stream, args);
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
  return cudaSuccess;
}

}  // namespace moe_ep::cuda
