#include "cuda/kernels/lamport.hpp"

#include "cuda/kernels/lamport_combine.cuh"
#include "cuda/kernels/lamport_dispatch.cuh"

namespace moe_ep::cuda {
namespace {

using protocol::LamportLayout;

constexpr int kLargeVectors = 2;  // a lane's, in steps of more units than blocks

std::uint64_t bits_of(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}
std::uint64_t bits_of(std::int64_t value) {
  return static_cast<std::uint64_t>(value);
}

std::int32_t smaller(std::int32_t a, std::int32_t b) {
  return a < b ? a : b;
}

struct Plan {
  LamportShape shape;
  bool wide = false;
  bool large = false;
  std::int32_t blocks = 1;
};

// @param all_or_ed whatever the users' rows and their sizes must be multiples of
Plan plan_step(std::int64_t row_bytes, std::uint64_t all_or_ed, std::int32_t tokens,
               std::int32_t first_piece, const LaunchOptions& options) {
  Plan plan;
  plan.wide = row_width(all_or_ed) >= 8;
  LamportShape& shape = plan.shape;
  shape.row_bytes = static_cast<std::uint32_t>(row_bytes);
  shape.first_piece = first_piece;
  shape.width = plan.wide ? 8 : smaller(row_width(all_or_ed), 4);
  const std::int64_t vector_bytes =
      static_cast<std::int64_t>(kLamportThreads) * (plan.wide ? 8 : 4);
  const std::int32_t capacity = options.max_blocks(kLamportThreads) - 1;
  const auto cut = [&](int vectors) {
    shape.piece_bytes = static_cast<std::uint32_t>(vectors * vector_bytes);
    const std::int64_t pieces =
        first_piece + (row_bytes + shape.piece_bytes - 1) / shape.piece_bytes;
    const std::int64_t units = pieces * tokens;
    shape.num_units = static_cast<std::int32_t>(units);
    shape.pieces = FastDivide::make(pieces, units);
    return units <= capacity;
  };
  if (!cut(1) && plan.wide) {
    plan.large = true;
    cut(kLargeVectors);
  }
  plan.blocks = 1 + smaller(shape.num_units, capacity);
  return plan;
}

using DispatchKernel = void (*)(LamportDispatchArgs);
using CombineKernel = void (*)(LamportCombineArgs);

template <int Words>
DispatchKernel dispatch_kernel(bool wide, bool large) {
  if (!wide) return lamport_dispatch_kernel<Words, false, 1>;
  return large ? lamport_dispatch_kernel<Words, true, kLargeVectors>
               : lamport_dispatch_kernel<Words, true, 1>;
}
DispatchKernel dispatch_kernel(std::int32_t num_ranks, bool wide, bool large) {
  return num_ranks <= 32 ? dispatch_kernel<1>(wide, large)
                         : dispatch_kernel<kMaxRanks / 32>(wide, large);
}
template <bool kQuantised>
CombineKernel combine_kernel(bool wide, bool large) {
  if (!wide) return lamport_combine_kernel<false, 1, kQuantised>;
  return large ? lamport_combine_kernel<true, kLargeVectors, kQuantised>
               : lamport_combine_kernel<true, 1, kQuantised>;
}
CombineKernel combine_kernel(bool quantised, bool wide, bool large) {
  return quantised ? combine_kernel<true>(wide, large) : combine_kernel<false>(wide, large);
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
  args.num_tags = params.top_k;
  for (std::int32_t payload = 2; payload < params.num_payloads; ++payload) {
    args.num_tags += static_cast<std::int32_t>(LamportLayout::num_tags(params.row_bytes(payload)));
  }
  const Plan plan =
      plan_step(params.row_bytes(0),
                bits_of(params.payloads[0].rows) | bits_of(params.payloads[0].stride) |
                    bits_of(params.workspace.base) | bits_of(params.workspace.slice_stride) |
                    bits_of(params.placement.offsets[0]) | bits_of(params.row_bytes(0)),
                params.tokens_per_rank, 1, options);
  args.shape = plan.shape;
  const std::int32_t num_ranks = params.workspace.layout.num_ranks;
  return enqueue(dispatch_kernel(num_ranks, plan.wide, plan.large), plan.blocks, kLamportThreads, 0,
                 options.pdl, stream, args);
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
  const std::byte* rows =
      params.expert_output != nullptr ? params.expert_output : params.row(0, 0, 0);
  const std::int64_t stride =
      params.expert_output != nullptr ? params.expert_output_stride : params.row_bytes;
  const Plan plan = plan_step(params.row_bytes,
                              bits_of(rows) | bits_of(stride) | bits_of(params.row_bytes) |
                                  bits_of(params.workspace.slice_stride),
                              params.tokens_per_rank, 0, options);
  args.shape = plan.shape;
  return enqueue(combine_kernel(output.format != OutputFormat::kPlain, plan.wide, plan.large),
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
  for (int shape = 0; shape < 8 && error == cudaSuccess; ++shape) {
    const bool wide = (shape & 1) != 0;
    const bool large = (shape & 2) != 0;
    const bool other = (shape & 4) != 0;
    error =
        load(reinterpret_cast<const void*>(dispatch_kernel(other ? kMaxRanks : 1, wide, large)));
    if (error != cudaSuccess) break;
    error = load(reinterpret_cast<const void*>(combine_kernel(other, wide, large)));
  }
  return error;
}

}  // namespace moe_ep::cuda
