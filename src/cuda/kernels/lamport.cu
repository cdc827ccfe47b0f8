#include "cuda/kernels/lamport.hpp"

#include "cuda/kernels/lamport_combine.cuh"
#include "cuda/kernels/lamport_dispatch.cuh"

namespace moe_ep::cuda {
namespace {

using protocol::LamportLayout;

constexpr int kLargeVectors = 2;

// What a lane has of a unit: little in small steps, where latency counts, more in steps of more
// units than blocks.
enum class LamportCut : std::int8_t { kNarrow, kSmall, kMedium, kLarge };

std::uint64_t bits_of(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}
std::uint64_t bits_of(std::int64_t value) {
  return static_cast<std::uint64_t>(value);
}

struct Plan {
  LamportShape shape;
  LamportCut cut = LamportCut::kNarrow;
  bool by_16 = false;  // rows and their pieces are aligned to 16
  bool adds = false;   // a combine, which has no registers for as much
  std::int32_t blocks = 1;

  // Bytes of a lane: of a vector, and how many vectors.
  std::int32_t bytes() const {
    if (cut == LamportCut::kNarrow) return 4;
    return by_16 && cut != LamportCut::kSmall ? 16 : 8;
  }
  std::int32_t vectors() const {
    if (cut == LamportCut::kNarrow || cut == LamportCut::kSmall) return 1;
    return by_16 && (cut == LamportCut::kMedium || adds) ? 1 : kLargeVectors;
  }
};

// @param all_or_ed whatever the users' rows and their sizes must be multiples of
// @param tags       a dispatch's; its num_blocks is set. Null: a combine
Plan plan_step(std::int64_t row_bytes, std::uint64_t all_or_ed, std::int32_t tokens,
               LamportTagShape* tags, const LaunchOptions& options) {
  Plan plan;
  plan.adds = tags == nullptr;
  const std::int64_t width = row_width(all_or_ed);
  plan.by_16 = width == 16;
  LamportShape& shape = plan.shape;
  shape.row_bytes = static_cast<std::uint32_t>(row_bytes);
  const std::int64_t head = plan.adds ? kCombineHeadBlocks : kDispatchHeadBlocks;
  const std::int64_t capacity = options.max_blocks(kLamportThreads) - head;
  // Blocks with tags, at most and at least: tokens of a block take turns of about a microsecond.
  const std::int64_t most =
      plan.adds ? 0 : (tokens + tags->tokens_at_once - 1) / tags->tokens_at_once;
  const std::int64_t least = most < 4 ? most : most / 8 > 4 ? most / 8 : 4;
  std::int64_t pieces = 0;
  // Cuts the rows; whether every unit has a block of its own, with some left for the tags.
  const auto fits = [&](LamportCut cut) {
    plan.cut = cut;
    shape.piece_bytes = static_cast<std::uint32_t>(kLamportThreads * plan.bytes() * plan.vectors());
    pieces = (row_bytes + shape.piece_bytes - 1) / shape.piece_bytes;
    return pieces * tokens + least <= capacity;
  };
  bool all_fit = false;
  if (width < 8) {
    all_fit = fits(LamportCut::kNarrow);
  } else {
    all_fit = fits(LamportCut::kSmall) || fits(LamportCut::kMedium) || fits(LamportCut::kLarge);
  }
  shape.width = plan.bytes() > 4 ? plan.bytes() : static_cast<std::int32_t>(width);
  std::int64_t tag_blocks = capacity - pieces * tokens;
  if (!all_fit && tags != nullptr) {
    // In proportion to the work: a group of tags takes a warp as long as 7 / 4 pieces (measured).
    const std::int64_t work = 7 * tags->groups;
    tag_blocks = capacity * work / (work + 4 * kLamportWarps * pieces);
  }
  if (tag_blocks < 1) tag_blocks = 1;
  if (tag_blocks > most) tag_blocks = most;
  const std::int64_t room = capacity - tag_blocks;
  const std::int64_t row_blocks = pieces * tokens < room ? pieces * tokens : room;
  const std::int64_t divisor = pieces > 0 ? pieces : 1;
  shape.pieces = FastDivide::make(divisor);
  shape.pieces_bytes = static_cast<std::uint32_t>(pieces * shape.piece_bytes);
  shape.step_tokens = static_cast<std::int32_t>(row_blocks / divisor);
  shape.step_bytes = static_cast<std::uint32_t>(row_blocks % divisor * shape.piece_bytes);
  if (tags != nullptr) tags->num_blocks = static_cast<std::int32_t>(tag_blocks);
  plan.blocks = static_cast<std::int32_t>(head + tag_blocks + row_blocks);
  return plan;
}

using DispatchKernel = void (*)(LamportDispatchArgs);
using CombineKernel = void (*)(LamportCombineArgs);

template <int Words, int Side>
DispatchKernel dispatch_kernel(const Plan& plan) {
  if (plan.bytes() == 4) return lamport_dispatch_kernel<Words, 4, 1, Side>;
  if (plan.bytes() == 8) {
    return plan.vectors() == 1 ? lamport_dispatch_kernel<Words, 8, 1, Side>
                               : lamport_dispatch_kernel<Words, 8, kLargeVectors, 1>;
  }
  return plan.vectors() == 1 ? lamport_dispatch_kernel<Words, 16, 1, 1>
                             : lamport_dispatch_kernel<Words, 16, kLargeVectors, 1>;
}
// A rank of two takes from one peer, others from several side by side.
DispatchKernel dispatch_kernel(std::int32_t num_ranks, const Plan& plan) {
  if (num_ranks <= 2) return dispatch_kernel<1, 1>(plan);
  return num_ranks <= 32 ? dispatch_kernel<1, 2>(plan) : dispatch_kernel<kMaxRanks / 32, 1>(plan);
}
template <int Side, bool kQuantised>
CombineKernel combine_kernel(const Plan& plan) {
  if (plan.bytes() == 4) return lamport_combine_kernel<4, 1, Side, kQuantised>;
  if (plan.bytes() == 8) {
    return plan.vectors() == 1 ? lamport_combine_kernel<8, 1, Side, kQuantised>
                               : lamport_combine_kernel<8, kLargeVectors, 1, kQuantised>;
  }
  return lamport_combine_kernel<16, 1, 1, kQuantised>;
}
CombineKernel combine_kernel(std::int32_t num_ranks, bool quantised, const Plan& plan) {
  if (quantised) return combine_kernel<1, true>(plan);
  return num_ranks <= 2 ? combine_kernel<1, false>(plan) : combine_kernel<3, false>(plan);
}

LamportTagShape plan_tags(const protocol::DispatchParams& params) {
  LamportTagShape shape;
  std::int32_t tags = params.top_k;
  for (std::int32_t payload = 2; payload <= kMaxPayloads; ++payload) {
    shape.first_tag[payload] = tags;
    if (payload >= params.num_payloads) continue;
    const protocol::Payload& from = params.payloads[payload];
    const std::int64_t row_bytes = params.row_bytes(payload);
    tags += static_cast<std::int32_t>(LamportLayout::num_tags(row_bytes));
    if (row_width(bits_of(from.rows) | bits_of(from.stride) | bits_of(row_bytes) |
                  bits_of(params.workspace.base) | bits_of(params.workspace.slice_stride) |
                  bits_of(params.placement.offsets[payload])) >= 4) {
      shape.whole_words |= 1u << payload;
    }
  }
  shape.whole_words |= 1u << 1;  // ids are made here
  shape.num_tags = tags;
  shape.groups = (tags + kWarp - 1) / kWarp;
  const std::int32_t warps = shape.groups < kLamportWarps ? kLamportWarps / shape.groups : 1;
  shape.parts = 1;
  while (2 * shape.parts <= warps && shape.parts < params.workspace.layout.num_ranks - 1)
    shape.parts *= 2;
  shape.tokens_at_once = warps / shape.parts;
  return shape;
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
  args.tags = plan_tags(params);
  const Plan plan =
      plan_step(params.row_bytes(0),
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
  const Plan plan = plan_step(params.row_bytes,
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
  Plan plan;
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
