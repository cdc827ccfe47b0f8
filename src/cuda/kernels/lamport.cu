#include "cuda/kernels/lamport.hpp"

#include "cuda/kernels/lamport_combine.cuh"
#include "cuda/kernels/lamport_dispatch.cuh"
#include "cuda/kernels/lamport_plan.hpp"

namespace moe_ep::cuda {
namespace {

using protocol::LamportLayout;

using DispatchKernel = void (*)(LamportDispatchArgs);
using CombineKernel = void (*)(LamportCombineArgs);

template <int Words, int Side>
DispatchKernel dispatch_kernel(const LamportPlan& plan) {
  if (plan.bytes() == 4) return lamport_dispatch_kernel<Words, 4, 1, Side>;
  if (plan.bytes() == 8) {
    return plan.vectors() == 1 ? lamport_dispatch_kernel<Words, 8, 1, Side>
                               : lamport_dispatch_kernel<Words, 8, kLamportLargeVectors, 1>;
  }
  return plan.vectors() == 1 ? lamport_dispatch_kernel<Words, 16, 1, 1>
                             : lamport_dispatch_kernel<Words, 16, kLamportLargeVectors, 1>;
}
// A rank of two takes from one peer, others from several side by side.
DispatchKernel dispatch_kernel(std::int32_t num_ranks, const LamportPlan& plan) {
  if (num_ranks <= 2) return dispatch_kernel<1, 1>(plan);
  return num_ranks <= 32 ? dispatch_kernel<1, 2>(plan) : dispatch_kernel<kMaxRanks / 32, 1>(plan);
}
template <int Side, bool kQuantised>
CombineKernel combine_kernel(const LamportPlan& plan) {
  if (plan.bytes() == 4) return lamport_combine_kernel<4, 1, Side, kQuantised>;
  if (plan.bytes() == 8) {
    return plan.vectors() == 1 ? lamport_combine_kernel<8, 1, Side, kQuantised>
                               : lamport_combine_kernel<8, kLamportLargeVectors, 1, kQuantised>;
  }
  return lamport_combine_kernel<16, 1, 1, kQuantised>;
}
CombineKernel combine_kernel(std::int32_t num_ranks, bool quantised, const LamportPlan& plan) {
  if (quantised) return combine_kernel<1, true>(plan);
  return num_ranks <= 2 ? combine_kernel<1, false>(plan) : combine_kernel<3, false>(plan);
}

struct ArmArgs {
  protocol::Workspace workspace;
  Epoch epoch = 0;
};

__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    lamport_arm_kernel(const __grid_constant__ ArmArgs args) {
  const LamportLayout& layout = args.workspace.layout.lamport;
  std::byte* own = args.workspace.own();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const auto fill = [&](std::int64_t from, std::int64_t to, std::uint64_t value) {
    for (std::int64_t at = from + 8 * first; at < to; at += 8 * step)
      *reinterpret_cast<std::uint64_t*>(own + at) = value;
  };
  const auto twice = [](std::uint32_t word) { return protocol::make_tag(word, word); };
  fill(layout.lines, layout.rows, protocol::make_tag(args.epoch, 0));
  fill(layout.rows, layout.combine, twice(protocol::sentinel_of(layout.words)));
  fill(layout.combine, layout.end, twice(protocol::sentinel_of(protocol::kCombineWords)));
  if (first < protocol::kLamportBanks) {
    args.workspace.header()->lamport_stamped[first] = args.epoch;
  }
}

}  // namespace

cudaError_t launch_lamport_dispatch(const protocol::DispatchParams& params,
                                    const LaunchOptions& options, cudaStream_t stream) {
  LamportDispatchArgs args;
  args.params = params;
  args.default_mask = options.default_mask;
  args.record = options.record;
  args.ownership = FastOwnership::make(params.ownership);
  args.early = options.early();
  args.tokens = FastDivide::make(params.tokens_per_rank > 0 ? params.tokens_per_rank : 1);
  const LamportLayout& layout = params.workspace.layout.lamport;
  args.row_grid = LamportGrid::make(layout.rows, layout.row_stride, layout);
  args.tag_grid = LamportGrid::make(layout.tags, layout.tag_stride, layout);
  args.sentinel = Sentinel::of(layout.words);
  args.tags = plan_lamport_tags(params);
  const LamportPlan plan = plan_lamport_rows(
      params.row_bytes(0),
      bits_of(params.payloads[0].rows) | bits_of(params.payloads[0].stride) |
          bits_of(params.workspace.base) | bits_of(params.workspace.slice_stride) |
          bits_of(params.placement.offsets[0]) | bits_of(params.row_bytes(0)),
      params.tokens_per_rank, &args.tags, options);
  args.shape = plan.shape;
  const std::int32_t num_ranks = params.workspace.layout.num_ranks;
  return enqueue(dispatch_kernel(num_ranks, plan), plan.blocks, kLamportThreads, 0, options.pdl,
                 stream, args);
}

cudaError_t launch_lamport_combine(const protocol::CombineParams& params,
                                   const CombineOutput& output, const LaunchOptions& options,
                                   cudaStream_t stream) {
  LamportCombineArgs args;
  args.params = params;
  args.output = output;
  args.record = options.record;
  args.early = options.early();
  args.wide_output = row_width(bits_of(output.rows) | bits_of(output.stride)) == 16;
  const std::byte* rows = params.expert_output != nullptr ? params.expert_output
                                                          : params.row(params.workspace.rank, 0, 0);
  const std::int64_t stride =
      params.expert_output != nullptr ? params.expert_output_stride : params.row_bytes;
  const LamportPlan plan =
      plan_lamport_rows(params.row_bytes,
                        bits_of(rows) | bits_of(stride) | bits_of(params.row_bytes) |
                            bits_of(params.workspace.slice_stride),
                        params.tokens_per_rank, nullptr, options);
  args.shape = plan.shape;
  const std::int32_t num_ranks = params.workspace.layout.num_ranks;
  args.rows = rows;
  args.stride = stride;
  const LamportLayout& layout = params.workspace.layout.lamport;
  args.row_grid = LamportGrid::make(layout.combine, layout.combine_stride, layout);
  args.tag_grid = LamportGrid::make(layout.tags, layout.tag_stride, layout);
  return enqueue(combine_kernel(num_ranks, output.format != OutputFormat::kPlain, plan),
                 plan.blocks, kLamportThreads, 0, options.pdl, stream, args);
}

cudaError_t launch_lamport_reset(const protocol::Workspace& workspace, protocol::Epoch epoch,
                                 cudaStream_t stream) {
  constexpr int kBlocks = 64;
  return enqueue(lamport_arm_kernel, kBlocks, kMaxBlockThreads, 0, Pdl::kOff, stream,
                 ArmArgs{workspace, epoch});
}

cudaError_t preload_lamport() {
  const auto load = [](const void* kernel) {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel);
  };
  cudaError_t error = load(reinterpret_cast<const void*>(lamport_arm_kernel));
  LamportPlan plan;
  for (const bool by_16 : {false, true}) {
    for (const LamportCut cut :
         {LamportCut::kNarrow, LamportCut::kSmall, LamportCut::kMedium, LamportCut::kLarge}) {
      plan.by_16 = by_16;
      plan.cut = cut;
      for (const std::int32_t num_ranks : {1, 3, kMaxRanks}) {
        if (error != cudaSuccess) return error;
        plan.adds = false;
        error = load(reinterpret_cast<const void*>(dispatch_kernel(num_ranks, plan)));
        plan.adds = true;
        for (const bool quantised : {false, true}) {
          if (error != cudaSuccess) return error;
          error = load(reinterpret_cast<const void*>(combine_kernel(num_ranks, quantised, plan)));
        }
      }
    }
  }
  return error;
}

}  // namespace moe_ep::cuda
