#include "cuda/kernels/combine.hpp"

#include "cuda/kernels/combine_variant.cuh"
#include "cuda/kernels/lamport.hpp"
#include "protocol/fp8_wire.hpp"

namespace moe_ep::cuda {
namespace {

CombineVariant variant_for(std::int32_t format, bool fp8, bool wide, bool quantised) {
  switch (format & ~protocol::kCombineFp8Wire) {
    case protocol::kCombineBf16:
      return combine_bf16(fp8, wide, quantised);
    case protocol::kCombineFp16:
      return combine_fp16(fp8, wide, quantised);
    default:
      return combine_fp32(fp8, wide, quantised);
  }
}

// With more loads from peers on their way at once than these threads issue, links get slower.
constexpr std::int32_t kPullThreads = 68 << 10;
constexpr std::int64_t kManyBytes = 1 << 20;

constexpr std::int64_t kMaxUnits = std::int64_t{1} << 30;  // numbered in 32 bits

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

// `value`, but `most` at most and, above all, `least` at least.
constexpr std::int64_t within(std::int64_t value, std::int64_t least, std::int64_t most) {
  const std::int64_t capped = value < most ? value : most;
  return capped > least ? capped : least;
}

// Cuts rows into parts with a flag each: the same on every rank. A part holds whole rounds of every
// variant.
void cut_rows(CombineArgs& args, std::int64_t wire_bytes, bool fp8, std::int64_t part_bytes) {
  const std::int32_t grain = fp8 ? 512 : 256;
  const std::int64_t grains = ceil_div(args.params.elements, grain);
  const bool countable = args.params.tokens_per_rank <= kMaxUnits / protocol::kMaxParts;
  const std::int64_t most = countable ? within(protocol::kMaxParts, 1, grains) : 1;
  const std::int64_t wanted = within(ceil_div(wire_bytes, part_bytes), 1, most);
  args.part_elements = static_cast<std::int32_t>(ceil_div(grains, wanted)) * grain;
  args.num_parts = static_cast<std::int32_t>(ceil_div(args.params.elements, args.part_elements));
}

bool overlap(const std::byte* a, std::int64_t a_bytes, const std::byte* b, std::int64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

std::int64_t expert_output_bytes(const protocol::CombineParams& params) {
  const std::int64_t rows =
      static_cast<std::int64_t>(params.workspace.layout.num_ranks) * params.tokens_per_rank;
  return params.expert_output == nullptr ? 0 : rows * params.expert_output_stride;
}

// Experts may have written over the rows they got, where peers put those of the next step.
bool lies_in_slice(const protocol::CombineParams& params) {
  const protocol::Workspace& workspace = params.workspace;
  return overlap(params.expert_output, expert_output_bytes(params), workspace.own(),
                 workspace.layout.slice_bytes);
}

// Whether nothing that this step reads or writes lies where rows would land.
bool landing_is_free(const CombineArgs& args) {
  const protocol::CombineParams& params = args.params;
  const std::byte* landing = params.workspace.own() + args.landing_begin;
  const std::int64_t bytes = args.landing_end - args.landing_begin;
  return !overlap(params.expert_output, expert_output_bytes(params), landing, bytes) &&
         !overlap(args.output.rows, params.num_tokens * args.output.stride, landing, bytes);
}

// Copies the expert output to the combine region.
cudaError_t place_expert_output(const protocol::CombineParams& params, cudaStream_t stream) {
  const std::int64_t rows =
      static_cast<std::int64_t>(params.workspace.layout.num_ranks) * params.tokens_per_rank;
  const auto row_bytes = static_cast<std::size_t>(params.row_bytes);
  return cudaMemcpy2DAsync(params.row(params.workspace.rank, 0, 0), row_bytes, params.expert_output,
                           static_cast<std::size_t>(params.expert_output_stride), row_bytes,
                           static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, stream);
}

}  // namespace

cudaError_t launch_combine(const protocol::CombineParams& params, const CombineOutput& output,
                           const LaunchOptions& options, cudaStream_t stream,
                           const CombineTuning& tuning) {
  if (params.transport == Transport::kLamport) {
    return launch_lamport_combine(params, output, options, stream);
  }
  const protocol::Workspace& workspace = params.workspace;
  const std::int64_t rows =
      static_cast<std::int64_t>(workspace.layout.num_ranks) * params.tokens_per_rank;
  const std::int64_t itemsize = params.row_bytes / params.elements;
  const bool fp8_asked = (params.format & protocol::kCombineFp8Wire) != 0;
  const bool fp8 = fp8_asked && protocol::fp8_wire_pays(params.elements, itemsize);
  const std::int64_t wire_bytes =
      fp8 ? protocol::fp8_wire_row_bytes(params.elements) : params.row_bytes;

  CombineArgs args;
  args.params = params;
  args.output = output;
  args.record = options.record;
  args.early = options.early();
  args.place = params.expert_output != nullptr || fp8;
  args.code = protocol::combine_code(params.row_bytes, params.format);
  args.finite_only = fp8_asked && !fp8;
  args.wire_stride = fp8 ? ceil_div(wire_bytes, 16) * 16 : params.row_bytes;
  args.landing_begin = workspace.layout.combine + protocol::align_up(rows * params.row_bytes);
  args.landing_end = workspace.layout.slice_bytes / protocol::kAlign * protocol::kAlign;
  args.push = workspace.layout.num_ranks > 1 && tuning.push_bytes >= 0 &&
              params.tokens_per_rank * params.row_bytes >= tuning.push_bytes;
  if (!args.push && workspace.layout.num_ranks > 1 && lies_in_slice(params)) {
    const cudaError_t error = place_expert_output(params, stream);
    if (error != cudaSuccess) return error;
    protocol::CombineParams placed = params;
    placed.expert_output = nullptr;
    return launch_combine(placed, output, options, stream, tuning);
  }

  const std::uint64_t row_bits = bits_of(workspace.base) | bits_of(workspace.slice_stride) |
                                 bits_of(workspace.layout.combine) | bits_of(params.row_bytes) |
                                 bits_of(params.expert_output) |
                                 bits_of(params.expert_output_stride);
  const bool wide = row_width(row_bits) == 16 && (!fp8 || params.elements % 16 == 0);
  args.copy_width = row_width(row_bits);
  args.wide_output = row_width(bits_of(output.rows) | bits_of(output.stride)) == 16;
  const bool quantised = output.format != OutputFormat::kPlain;
  const CombineVariant variant = variant_for(params.format, fp8, wide, quantised);

  const std::int32_t held = combine_threads(fp8, quantised);
  std::int32_t threads = tuning.threads < held ? tuning.threads : held;
  const bool many = params.tokens_per_rank * params.row_bytes >= kManyBytes;
  if (!args.push && many) {
    const std::int32_t share = kPullThreads / options.sms() / kWarp * kWarp;
    threads = static_cast<std::int32_t>(within(share, kWarp, threads));
  }
  std::int32_t blocks = options.max_blocks(threads, held);
  const std::int64_t num_rounds = ceil_div(params.elements, variant.round);
  const std::int32_t warps = threads / kWarp;
  if (args.push) {
    args.ask_landing = options.sms() >= tuning.min_push_sms && landing_is_free(args);
    cut_rows(args, wire_bytes, fp8, tuning.part_bytes);
    const std::int64_t useful = 2 * ceil_div(params.tokens_per_rank * args.num_parts, warps);
    if (blocks > useful) blocks = useful > 0 ? static_cast<std::int32_t>(useful) : 1;
    const std::int32_t percent = fp8 ? tuning.fp8_push_percent : tuning.push_percent;
    args.push_warps = static_cast<std::int32_t>(within(warps * percent / 100, 1, warps - 1));
    args.rounds_per_unit = args.part_elements / variant.round;
  } else {
    cut_rows(args, wire_bytes, fp8, wire_bytes + 1);  // one part, also of no bytes
    // As many units as warps, if there is that much to do.
    args.rounds_per_unit = static_cast<std::int32_t>(
        ceil_div(num_rounds * params.num_tokens, static_cast<std::int64_t>(blocks) * warps));
  }
  if (args.rounds_per_unit < 1) args.rounds_per_unit = 1;
  if (args.rounds_per_unit > num_rounds) {
    args.rounds_per_unit = static_cast<std::int32_t>(num_rounds);
  }
  std::int64_t units_per_token = ceil_div(num_rounds, args.rounds_per_unit);
  if (params.num_tokens * units_per_token > kMaxUnits) {
    args.rounds_per_unit = static_cast<std::int32_t>(num_rounds);
    units_per_token = 1;
  }
  args.units = FastDivide::make(units_per_token);
  if (!args.push) {
    const std::int64_t sums = ceil_div(params.num_tokens * units_per_token, warps);
    // A warp copies a row, a block encodes one where it lies.
    const bool by_blocks = fp8 && params.expert_output == nullptr;
    const std::int64_t copied = ceil_div(rows - params.tokens_per_rank, warps);
    const std::int64_t sent = !args.place ? 1 : by_blocks ? params.tokens_per_rank : copied;
    const std::int64_t useful = within(sums, sent > 0 ? sent : 1, sums);
    if (blocks > useful) blocks = static_cast<std::int32_t>(useful);
  }
  args.rehearse = options.early() && workspace.layout.num_ranks > 1;
  const std::size_t scale_bytes = fp8 ? 4 * protocol::fp8_num_blocks(params.elements) : 0;
  return enqueue(args.push ? variant.push : variant.pull, blocks, threads, scale_bytes, options.pdl,
                 stream, args);
}

cudaError_t preload_combine() {
  constexpr int kMaxScaleBytes = 128 << 10;  // rows of 4 million elements
  for (int shape = 0; shape < 3 * 16; ++shape) {
    const bool fp8 = (shape & 1) != 0;
    const CombineVariant variant = variant_for(shape / 16, fp8, (shape & 2) != 0, (shape & 4) != 0);
    const void* kernel = (shape & 8) != 0 ? reinterpret_cast<const void*>(variant.push)
                                          : reinterpret_cast<const void*>(variant.pull);
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error == cudaSuccess && fp8) {
      error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxScaleBytes);
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace moe_ep::cuda
