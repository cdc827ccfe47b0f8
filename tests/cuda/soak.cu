// Very many steps on end, checked word by word where they run: ranks of one process on the GPUs at
// hand, Lamport and fence steps of any size, eager and replayed, kernels of a model between them,
// some of them late.
//
//   moe_ep_cuda_soak [--steps N] [--ranks R] [--seed S] [--no-pdl] [--fence]
//
// Prints how many steps there were and how many words were wrong; fails if any was.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/device/memory.cuh"
#include "cuda/kernels/combine.hpp"
#include "cuda/kernels/dispatch.hpp"
#include "protocol/payload.hpp"
#include "protocol/reduce.hpp"
#include "protocol/transport/sentinel.hpp"
#include "rig.hpp"

namespace {

using namespace moe_ep;
using testing::DeviceBuffer;
using testing::Rig;
using testing::RigRank;

constexpr int kMaxTokens = 24;
constexpr int kTopK = 4;
constexpr int kElements = 1032;  // of a row: two pieces, the second a short one
constexpr int kWords = kElements / 2;
constexpr int kThreads = 128;

MOE_EP_HD inline std::uint32_t mix(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t h = a * 0x9e3779b1u ^ (b + 0x7f4a7c15u) * 0x85ebca77u ^ (c + 1) * 0xc2b2ae3du;
  h ^= h >> 15;
  h *= 0x2c1b3c6du;
  return h ^ h >> 13;
}
// What every rank knows about every other one's step: `step` numbers the steps.
MOE_EP_HD inline std::int32_t pick_of(std::uint32_t step, int rank, int token, int k, int experts) {
  const std::uint32_t h =
      mix(step, static_cast<std::uint32_t>(rank * 1024 + token), static_cast<std::uint32_t>(k));
  // Void picks, and experts of one rank for a whole token, now and then.
  if (h % 16 == 0) return -1;
  const std::uint32_t row = mix(step, static_cast<std::uint32_t>(rank * 1024 + token), 99);
  return static_cast<std::int32_t>((row % 4 == 0 ? row / 4 : h / 16) %
                                   static_cast<std::uint32_t>(experts));
}
MOE_EP_HD inline std::uint32_t row_word(std::uint32_t step, int rank, int token, int word) {
  const std::uint32_t h = mix(step * 2 + 1, static_cast<std::uint32_t>(rank * 1024 + token),
                              static_cast<std::uint32_t>(word));
  return h % 32 == 0 ? 0xffffffffu : h;
}
// Two bf16 of medium size.
MOE_EP_HD inline std::uint32_t answer_word(std::uint32_t step, int rank, int src, int token,
                                           int word) {
  const std::uint32_t h =
      mix(step * 2, static_cast<std::uint32_t>((rank * 64 + src) * 1024 + token),
          static_cast<std::uint32_t>(word));
  return (h & 0x807f807fu) | (120u + (h >> 8 & 15u)) << 7 | (120u + (h >> 24 & 15u)) << 23;
}

// What the kernels of a rank between the phases of a step look at.
struct ModelArgs {
  protocol::DispatchParams dispatch;
  protocol::CombineParams combine;
  std::uint32_t* step = nullptr;   // device memory: this rank's, counted up by the last kernel
  std::uint32_t* wrong = nullptr;  // words
  std::byte* hidden = nullptr;
  std::int32_t* ids = nullptr;
  std::uint32_t* weights = nullptr;
  std::byte* output = nullptr;
  int experts = 0;
  bool lamport = false;
  std::uint32_t late_one_in = 0;  // steps that a kernel delays; 0: none
};

__device__ inline bool visits(const ModelArgs& args, std::uint32_t step, int src, int token,
                              int dst) {
  for (int k = 0; k < kTopK; ++k) {
    const std::int32_t id = pick_of(step, src, token, k, args.experts);
    if (id >= 0 && args.dispatch.ownership.owner(id) == dst) return true;
  }
  return false;
}
__device__ inline void begin(const ModelArgs& args, std::uint32_t phase) {
  cuda::launch_dependents();
  cuda::wait_for_producers();
  if (args.late_one_in == 0) return;
  const std::uint32_t h =
      mix(*args.step, static_cast<std::uint32_t>(args.dispatch.workspace.rank), 1000 + phase);
  for (std::uint32_t i = 0; h % args.late_one_in == 0 && i < h / 1024 % 64; ++i)
    __nanosleep(500);
}
__device__ inline void expect(const ModelArgs& args, std::uint32_t got, std::uint32_t want) {
  if (got != want) atomicAdd(args.wrong, 1u);
}

__global__ void make_inputs(const __grid_constant__ ModelArgs args) {
  begin(args, 0);
  const std::uint32_t step = *args.step;
  const int rank = args.dispatch.workspace.rank;
  for (int token = static_cast<int>(blockIdx.x); token < args.dispatch.num_tokens;
       token += static_cast<int>(gridDim.x)) {
    auto* row = reinterpret_cast<std::uint32_t*>(args.hidden) + token * kWords;
    for (int word = static_cast<int>(threadIdx.x); word < kWords; word += kThreads)
      row[word] = row_word(step, rank, token, word);
    if (threadIdx.x >= kTopK) continue;
    const auto k = static_cast<int>(threadIdx.x);
    args.ids[token * kTopK + k] = pick_of(step, rank, token, k, args.experts);
    args.weights[token * kTopK + k] = row_word(step, rank, token, 5000 + k);
  }
}

// Checks the rows that came, then writes the answers into the combine region.
__global__ void run_experts(const __grid_constant__ ModelArgs args) {
  begin(args, 1);
  const std::uint32_t step = *args.step;
  const protocol::DispatchParams& params = args.dispatch;
  const int me = params.workspace.rank;
  for (int src = static_cast<int>(blockIdx.x); src < params.workspace.layout.num_ranks;
       src += static_cast<int>(gridDim.x)) {
    int next = 0;
    // A rank's tokens end where its rows say so: its number of tokens is not known here.
    for (int token = 0; token < params.tokens_per_rank; ++token) {
      const int at = args.lamport ? token : next;
      if (!args.lamport && next >= params.workspace.recv_counts()[src]) break;
      if (!visits(args, step, src, token, me)) continue;
      const auto* ids = reinterpret_cast<const std::int32_t*>(params.row(me, 1, src, at));
      if (args.lamport && ids[0] == params.invalid_expert_id && ids[1] == ids[0] &&
          ids[2] == ids[0] && ids[3] == ids[0]) {
        continue;  // behind the last token
      }
      ++next;
      const auto* row = reinterpret_cast<const std::uint32_t*>(params.row(me, 0, src, at));
      const auto* weights = reinterpret_cast<const std::uint32_t*>(params.row(me, 2, src, at));
      auto* answer = reinterpret_cast<std::uint32_t*>(args.combine.row(me, src, at));
      for (int word = static_cast<int>(threadIdx.x); word < kWords; word += kThreads) {
        const std::uint32_t sent = row_word(step, src, token, word);
        expect(args, row[word],
               args.lamport && src != me ? protocol::canonical(sent, protocol::DataWords::kBf16)
                                         : sent);
        answer[word] = answer_word(step, me, src, token, word);
      }
      if (threadIdx.x >= kTopK) continue;
      const auto k = static_cast<int>(threadIdx.x);
      expect(args, static_cast<std::uint32_t>(ids[k]),
             static_cast<std::uint32_t>(pick_of(step, src, token, k, args.experts)));
      expect(args, weights[k], row_word(step, src, token, 5000 + k));
    }
    if (threadIdx.x == 0) {
      expect(args, static_cast<std::uint32_t>(next),
             static_cast<std::uint32_t>(params.workspace.recv_counts()[src]));
    }
  }
}

__global__ void check_sums(const __grid_constant__ ModelArgs args) {
  begin(args, 2);
  const std::uint32_t step = *args.step;
  const int me = args.dispatch.workspace.rank;
  for (int token = static_cast<int>(blockIdx.x); token < args.dispatch.num_tokens;
       token += static_cast<int>(gridDim.x)) {
    const auto* row = reinterpret_cast<const std::uint32_t*>(args.output) + token * kWords;
    for (int word = static_cast<int>(threadIdx.x); word < kWords; word += kThreads) {
      float sums[2] = {protocol::kEmptySum, protocol::kEmptySum};
      bool first = true;
      for (int rank = 0; rank < args.dispatch.workspace.layout.num_ranks; ++rank) {
        if (!visits(args, step, me, token, rank)) continue;
        const std::uint32_t answer = answer_word(step, rank, me, token, word);
        for (int half = 0; half < 2; ++half) {
          const float value =
              protocol::Bf16::to_float(static_cast<std::uint16_t>(answer >> (16 * half)));
          sums[half] = first ? value : protocol::sum_next(sums[half], value);
        }
        first = false;
      }
      const std::uint32_t high = protocol::Bf16::from_float(sums[1]);
      expect(args, row[word], high << 16 | protocol::Bf16::from_float(sums[0]));
    }
  }
}

__global__ void count_step(const __grid_constant__ ModelArgs args) {
  begin(args, 3);
  if (threadIdx.x == 0) ++*args.step;
}

struct Options {
  long steps = 20000;
  int ranks = 2;
  unsigned seed = 1;
  bool pdl = true, lamport = true;
};

// The steps of one size: everything that is constant in a captured launch.
struct StepSize {
  bool lamport = true;
  int tokens_per_rank = 1;
  std::vector<int> num_tokens;
  std::vector<cudaGraphExec_t> graphs;  // of each rank
};

class Soak {
 public:
  explicit Soak(const Options& options)
      : options_(options), random_(options.seed), rig_(devices(options.ranks), layout()) {
    for (int rank = 0; rank < rig_.size(); ++rank) {
      RigRank& place = rig_[rank];
      place.options.pdl = options_.pdl ? cuda::Pdl::kEarly : cuda::Pdl::kOff;
      const auto buffer = [&](std::size_t bytes) {
        memory_.emplace_back(place.device, bytes);
        MOE_EP_CUDA_CHECK(cudaMemset(memory_.back().data(), 0, bytes));
        return memory_.back().data();
      };
      ModelArgs args;
      args.hidden = buffer(kMaxTokens * kElements * 2);
      args.output = buffer(kMaxTokens * kElements * 2);
      args.ids = reinterpret_cast<std::int32_t*>(buffer(kMaxTokens * kTopK * 4));
      args.weights = reinterpret_cast<std::uint32_t*>(buffer(kMaxTokens * kTopK * 4));
      args.step = reinterpret_cast<std::uint32_t*>(buffer(4));
      args.wrong = reinterpret_cast<std::uint32_t*>(buffer(4));
      args.experts = 4 * rig_.size();
      args.late_one_in = 16;
      args_.push_back(args);
    }
  }

  long run() {
    std::vector<StepSize> sizes;
    for (int i = 0; i < 6; ++i)
      sizes.push_back(captured());
    long done = 0;
    while (done < options_.steps) {
      const long batch = std::min<long>(200, options_.steps - done);
      for (long i = 0; i < batch; ++i) {
        if (random_() % 2 == 0) {
          const StepSize& size = sizes[random_() % sizes.size()];
          for (int rank = 0; rank < rig_.size(); ++rank) {
            MOE_EP_CUDA_CHECK(cudaGraphLaunch(size.graphs[static_cast<std::size_t>(rank)],
                                              rig_.use(rank).stream));
          }
        } else {
          enqueue(random_size());
        }
      }
      rig_.synchronize();
      testing::expect_all_ok(rig_);
      done += batch;
      if (done % 100000 == 0) std::printf("%ld steps, %ld words wrong\n", done, wrong());
    }
    for (const StepSize& size : sizes) {
      for (const cudaGraphExec_t graph : size.graphs)
        cudaGraphExecDestroy(graph);
    }
    const long words = wrong();
    std::printf("%ld steps on %d ranks and %d GPUs, seed %u, %s: %ld words wrong\n", done,
                rig_.size(), std::min(testing::num_gpus(), rig_.size()), options_.seed,
                options_.pdl ? "early launches" : "no early launches", words);
    return words;
  }

 private:
  static std::vector<int> devices(int num_ranks) {
    std::vector<int> all;
    for (int rank = 0; rank < num_ranks; ++rank)
      all.push_back(rank % std::max(1, testing::num_gpus()));
    return all;
  }
  protocol::WorkspaceLayout layout() const {
    protocol::TransportRegions regions;
    regions.lamport = {.max_tokens = kMaxTokens,
                       .top_k = kTopK,
                       .value_bytes = 2 * kElements,
                       .combine_bytes = 2 * kElements};
    return protocol::WorkspaceLayout::make(
        options_.ranks, kMaxTokens, 0,
        protocol::WorkspaceLayout::required_bytes(
            options_.ranks, kMaxTokens, 0, 2 * kElements + 8 * kTopK, 2 * kElements, regions),
        regions);
  }

  StepSize random_size() {
    StepSize size;
    size.lamport = options_.lamport && random_() % 8 != 0;
    size.tokens_per_rank = 1 + static_cast<int>(random_() % kMaxTokens);
    for (int rank = 0; rank < rig_.size(); ++rank) {
      size.num_tokens.push_back(
          static_cast<int>(random_() % static_cast<unsigned>(size.tokens_per_rank + 1)));
    }
    return size;
  }
  StepSize captured() {
    StepSize size = random_size();
    for (int rank = 0; rank < rig_.size(); ++rank) {
      const cudaStream_t stream = rig_.use(rank).stream;
      MOE_EP_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      enqueue(rank, size);
      cudaGraph_t graph = nullptr;
      MOE_EP_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
      size.graphs.push_back(nullptr);
      MOE_EP_CUDA_CHECK(cudaGraphInstantiate(&size.graphs.back(), graph, 0));
      MOE_EP_CUDA_CHECK(cudaGraphDestroy(graph));
    }
    return size;
  }

  void enqueue(const StepSize& size) {
    for (int rank = 0; rank < rig_.size(); ++rank)
      enqueue(rank, size);
  }
  void enqueue(int rank, const StepSize& size) {
    RigRank& place = rig_.use(rank);
    const ModelArgs args = model_args(rank, size);
    const cuda::Pdl pdl = place.options.early() ? cuda::Pdl::kEarly : cuda::Pdl::kOff;
    constexpr int kBlocks = 4;
    MOE_EP_CUDA_CHECK(cuda::enqueue(make_inputs, kBlocks, kThreads, 0, pdl, place.stream, args));
    MOE_EP_CUDA_CHECK(cuda::launch_dispatch(args.dispatch, place.options, place.stream));
    MOE_EP_CUDA_CHECK(cuda::enqueue(run_experts, kBlocks, kThreads, 0, pdl, place.stream, args));
    const CombineOutput output{args.output, 2 * kElements, kBFloat16};
    MOE_EP_CUDA_CHECK(cuda::launch_combine(args.combine, output, place.options, place.stream));
    MOE_EP_CUDA_CHECK(cuda::enqueue(check_sums, kBlocks, kThreads, 0, pdl, place.stream, args));
    MOE_EP_CUDA_CHECK(cuda::enqueue(count_step, 1, kWarpThreads, 0, pdl, place.stream, args));
  }
  static constexpr int kWarpThreads = 32;

  ModelArgs model_args(int rank, const StepSize& size) {
    const RigRank& place = rig_[rank];
    ModelArgs args = args_[static_cast<std::size_t>(rank)];
    args.lamport = size.lamport;
    const Transport transport = size.lamport ? Transport::kLamport : Transport::kFence;
    protocol::DispatchParams& step = args.dispatch;
    step.workspace = place.workspace;
    step.active = RankMask::first(rig_.size());
    step.num_tokens = size.num_tokens[static_cast<std::size_t>(rank)];
    step.tokens_per_rank = size.tokens_per_rank;
    step.ownership = protocol::Ownership::make(args.experts, rig_.size());
    step.top_k = kTopK;
    step.topk_ids = reinterpret_cast<const std::byte*>(args.ids);
    step.topk_ids_stride = 4 * kTopK;
    step.ids_payload = 1;
    step.timeout_ns = 20'000'000'000ull;
    auto& fields = step.signature.fields;
    fields[protocol::kTokensPerRank] = size.tokens_per_rank;
    fields[protocol::kNumExperts] = args.experts;
    fields[protocol::kTopK] = kTopK;
    fields[protocol::kTransport] = static_cast<std::int32_t>(transport);
    const auto add = [&](const void* rows, int bytes) {
      step.payloads[step.num_payloads] = {static_cast<const std::byte*>(rows), bytes};
      fields[protocol::kFirstRowBytes + step.num_payloads++] = bytes;
    };
    add(args.hidden, 2 * kElements);
    add(args.ids, 4 * kTopK);
    add(args.weights, 4 * kTopK);
    fields[protocol::kNumPayloads] = step.num_payloads;
    step.placement =
        protocol::PayloadPlacement::make(place.workspace.layout, size.tokens_per_rank,
                                         fields + protocol::kFirstRowBytes, step.num_payloads);
    protocol::CombineParams& combine = args.combine;
    combine.workspace = place.workspace;
    combine.num_tokens = step.num_tokens;
    combine.tokens_per_rank = size.tokens_per_rank;
    combine.elements = kElements;
    combine.row_bytes = 2 * kElements;
    combine.timeout_ns = step.timeout_ns;
    combine.transport = transport;
    return args;
  }

  long wrong() {
    long words = 0;
    for (int rank = 0; rank < rig_.size(); ++rank) {
      rig_.use(rank);
      std::uint32_t count = 0;
      MOE_EP_CUDA_CHECK(cudaMemcpy(&count, args_[static_cast<std::size_t>(rank)].wrong,
                                   sizeof count, cudaMemcpyDeviceToHost));
      words += count;
    }
    return words;
  }

  const Options options_;
  std::mt19937 random_;
  Rig rig_;
  std::vector<DeviceBuffer> memory_;
  std::vector<ModelArgs> args_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const long value = i + 1 < argc ? std::atol(argv[i + 1]) : 0;
    if (name == "--no-pdl") {
      options.pdl = false;
      continue;
    }
    if (name == "--fence") {
      options.lamport = false;
      continue;
    }
    if (name == "--steps") {
      options.steps = value;
    } else if (name == "--ranks") {
      options.ranks = static_cast<int>(value);
    } else if (name == "--seed") {
      options.seed = static_cast<unsigned>(value);
    } else {
      std::fprintf(stderr, "unknown option %s\n", name.c_str());
      return 2;
    }
    ++i;
  }
  if (testing::num_gpus() < 1) {
    std::printf("skipped: needs a GPU, got none\n");
    return 0;
  }
  return Soak(options).run() == 0 ? 0 : 1;
}
