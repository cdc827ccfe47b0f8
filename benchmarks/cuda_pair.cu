// Time of a dispatch + combine pair on GPUs: one process, one stream a rank, everything in CUDA
// graphs, results checked before they are timed.
//
//   cuda_pair [--ranks R] [--one-gpu] [--tokens 1,8,...] [--lamport] [--fp8-dispatch]
//             [--fp8-combine] [--external] [--no-pdl] [--late-pdl] [--max-sms N] [--hidden H]
//             [--top-k K]
//             [--experts E] [--push-bytes N] [--push-percent N] [--part-bytes N]
//             [--threads N] [--dispatch-threads N]
//
// Prints one line a case: T, time of a pair (median of replays, maximum over ranks), from 1024
// tokens on also time and physical GB/s of each phase, and the share of the copy engines' rate with
// both directions busy, measured in the same run.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/combine.hpp"
#include "cuda/kernels/dispatch.hpp"
#include "protocol/fp8_wire.hpp"
#include "rig.hpp"

namespace {

using namespace moe_ep;
using testing::DeviceBuffer;
using testing::Rig;
using testing::RigRank;

struct Options {
  int ranks = 2;
  bool one_gpu = false, lamport = false, fp8_dispatch = false, fp8_combine = false,
       external = false;
  cuda::Pdl pdl = cuda::Pdl::kEarly;
  int max_sms = 0, hidden = 7168, top_k = 8, experts = 256;
  std::vector<int> tokens{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  cuda::CombineTuning tuning;
  cuda::DispatchTuning dispatch_tuning;
};

__host__ __device__ inline std::uint32_t hash(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t h =
      a * 0x9e3779b1u ^ (b + 0x7f4a7c15u) * 0x85ebca77u ^ (c + 0x165667b1u) * 0xc2b2ae3du;
  h ^= h >> 15;
  h *= 0x2c1b3c6du;
  h ^= h >> 12;
  return h ^ h >> 15;
}
// Two bf16 of medium size.
__host__ __device__ inline std::uint32_t expert_word(int rank, int row, int word) {
  const std::uint32_t h = hash(static_cast<std::uint32_t>(rank + 7), row, word);
  return (h & 0x807f807fu) | (120u + (h >> 8 & 15u)) << 7 | (120u + (h >> 24 & 15u)) << 23;
}

__global__ void fill_rows(std::uint32_t* rows, int rank, int num_rows, int words, bool expert) {
  const std::int64_t total = static_cast<std::int64_t>(num_rows) * words;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < total;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const int row = static_cast<int>(i / words), word = static_cast<int>(i % words);
    rows[i] = expert ? expert_word(rank, row, word) : hash(rank, row, word);
  }
}

// rows[src * T + row] must be token tokens[src * T + row] of src, where that is not -1.
__global__ void check_rows(const std::uint32_t* rows, const int* tokens, int num_ranks, int T,
                           int words, int* wrong) {
  for (int at = blockIdx.x; at < num_ranks * T; at += gridDim.x) {
    if (tokens[at] < 0) continue;
    for (int word = threadIdx.x; word < words; word += blockDim.x) {
      if (rows[static_cast<std::int64_t>(at) * words + word] != hash(at / T, tokens[at], word)) {
        atomicAdd(wrong, 1);
      }
    }
  }
}

// out[t] must be the sum over ranks of row places[rank * T + t] of block `me`, where not -1.
__global__ void check_sums(const std::uint32_t* out, const int* places, int num_ranks, int T,
                           int num_tokens, int me, int words, int* wrong) {
  for (int token = blockIdx.x; token < num_tokens; token += gridDim.x) {
    for (int word = threadIdx.x; word < words; word += blockDim.x) {
      float low = -0.0f, high = -0.0f;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const int place = places[rank * T + token];
        if (place < 0) continue;
        const std::uint32_t value = expert_word(rank, me * T + place, word);
        low = __fadd_rn(low, __uint_as_float(value << 16));
        high = __fadd_rn(high, __uint_as_float(value & 0xffff0000u));
      }
      const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
      if (out[static_cast<std::int64_t>(token) * words + word] !=
          *reinterpret_cast<const std::uint32_t*>(&pair)) {
        atomicAdd(wrong, 1);
      }
    }
  }
}

struct Rank {
  DeviceBuffer hidden, scales, ids, weights, experts, output, tokens, places, wrong;
  std::vector<int> hosts_ids;
  protocol::DispatchParams dispatch;
  protocol::CombineParams combine;
  CombineOutput out;
  double remote_rows = 0;
};

class Pair {
 public:
  Pair(Rig& rig, const Options& options, int T)
      : rig_(rig), options_(options), T_(T), ranks_(rig.size()) {
    for (int rank = 0; rank < rig.size(); ++rank)
      make(rank);
    for (int rank = 0; rank < rig.size(); ++rank)
      map(rank);
  }

  void dispatch(int rank) {
    RigRank& place = rig_.use(rank);
    MOE_EP_CUDA_CHECK(cuda::launch_dispatch(at(rank).dispatch, place.options, place.stream,
                                            options_.dispatch_tuning));
  }
  void combine(int rank) {
    RigRank& place = rig_.use(rank);
    MOE_EP_CUDA_CHECK(cuda::launch_combine(at(rank).combine, at(rank).out, place.options,
                                           place.stream, options_.tuning));
  }
  void fill_combine_region(int rank) {
    RigRank& place = rig_.use(rank);
    auto* rows = options_.external ? at(rank).experts.data() : at(rank).combine.row(rank, 0, 0);
    fill_rows<<<512, 512, 0, place.stream>>>(reinterpret_cast<std::uint32_t*>(rows), rank,
                                             rig_.size() * T_, options_.hidden / 2, true);
  }
  double remote_rows() const {
    double most = 0;
    for (const Rank& rank : ranks_)
      most = std::max(most, rank.remote_rows);
    return most;
  }
  double dispatch_bytes() const {
    double bytes = 0;
    for (int p = 0; p < ranks_[0].dispatch.num_payloads; ++p)
      bytes += ranks_[0].dispatch.row_bytes(p);
    return bytes * remote_rows();
  }
  double combine_bytes() const {
    return remote_rows() * (options_.fp8_combine ? protocol::fp8_wire_row_bytes(options_.hidden)
                                                 : 2.0 * options_.hidden);
  }

  // Mismatches of two steps, the second after rubbish in the outputs.
  long check() {
    long wrong = 0;
    for (int round = 0; round < 2; ++round) {
      for (int rank = 0; rank < rig_.size(); ++rank) {
        rig_.use(rank);
        MOE_EP_CUDA_CHECK(cudaMemsetAsync(at(rank).output.data(), 0xcd, at(rank).output.size(),
                                          rig_[rank].stream));
        dispatch(rank);
        const int words = options_.fp8_dispatch ? options_.hidden / 4 : options_.hidden / 2;
        check_rows<<<512, 256, 0, rig_[rank].stream>>>(
            reinterpret_cast<const std::uint32_t*>(at(rank).dispatch.row(rank, 0, 0, 0)),
            reinterpret_cast<const int*>(at(rank).tokens.data()), rig_.size(), T_, words,
            reinterpret_cast<int*>(at(rank).wrong.data()));
        fill_combine_region(rank);
      }
      for (int rank = 0; rank < rig_.size(); ++rank) {
        combine(rank);
        if (options_.fp8_combine) continue;  // checked by the tests
        check_sums<<<512, 256, 0, rig_[rank].stream>>>(
            reinterpret_cast<const std::uint32_t*>(at(rank).output.data()),
            reinterpret_cast<const int*>(at(rank).places.data()), rig_.size(), T_, T_, rank,
            options_.hidden / 2, reinterpret_cast<int*>(at(rank).wrong.data()));
      }
      rig_.synchronize();
      testing::expect_all_ok(rig_);
    }
    for (int rank = 0; rank < rig_.size(); ++rank) {
      int count = 0;
      std::memcpy(&count, at(rank).wrong.download().data(), 4);
      wrong += count;
    }
    return wrong;
  }

  // us per pair, or of each phase (0: pair, 1: dispatch, 2: combine), over graph replays.
  std::vector<double> time(int pairs, int replays, bool phases) {
    const int n = rig_.size();
    std::vector<cudaGraphExec_t> graphs(n);
    std::vector<std::vector<cudaEvent_t>> events(n);
    for (int rank = 0; rank < n; ++rank) {
      RigRank& place = rig_.use(rank);
      const int count = phases ? 2 * pairs + 1 : 2;
      for (int e = 0; e < count; ++e) {
        events[rank].push_back(nullptr);
        MOE_EP_CUDA_CHECK(cudaEventCreate(&events[rank].back()));
      }
      MOE_EP_CUDA_CHECK(cudaStreamBeginCapture(place.stream, cudaStreamCaptureModeThreadLocal));
      int next = 0;
      const auto mark = [&] {
        MOE_EP_CUDA_CHECK(
            cudaEventRecordWithFlags(events[rank][next++], place.stream, cudaEventRecordExternal));
      };
      dispatch(rank);
      combine(rank);
      mark();
      for (int pair = 0; pair < pairs; ++pair) {
        dispatch(rank);
        if (phases) mark();
        combine(rank);
        if (phases) mark();
      }
      if (!phases) mark();
      cudaGraph_t graph = nullptr;
      MOE_EP_CUDA_CHECK(cudaStreamEndCapture(place.stream, &graph));
      MOE_EP_CUDA_CHECK(cudaGraphInstantiate(&graphs[rank], graph, 0));
      MOE_EP_CUDA_CHECK(cudaGraphDestroy(graph));
      MOE_EP_CUDA_CHECK(cudaGraphUpload(graphs[rank], place.stream));
    }
    std::vector<double> pair_us, dispatch_us, combine_us;
    for (int replay = 0; replay < replays + 2; ++replay) {
      for (int rank = 0; rank < n; ++rank) {
        MOE_EP_CUDA_CHECK(cudaGraphLaunch(graphs[rank], rig_.use(rank).stream));
      }
      rig_.synchronize();
      if (replay < 2) continue;
      double longest = 0;
      std::vector<double> d(pairs), c(pairs);
      for (int rank = 0; rank < n; ++rank) {
        rig_.use(rank);
        const auto between = [&](std::size_t from, std::size_t to) {
          float ms = 0;
          MOE_EP_CUDA_CHECK(cudaEventElapsedTime(&ms, events[rank][from], events[rank][to]));
          return ms * 1e3;
        };
        longest = std::max(longest, between(0, events[rank].size() - 1) / pairs);
        for (int pair = 0; phases && pair < pairs; ++pair) {
          d[pair] = std::max(d[pair], between(2 * pair, 2 * pair + 1));
          c[pair] = std::max(c[pair], between(2 * pair + 1, 2 * pair + 2));
        }
      }
      pair_us.push_back(longest);
      if (!phases) continue;
      dispatch_us.insert(dispatch_us.end(), d.begin(), d.end());
      combine_us.insert(combine_us.end(), c.begin(), c.end());
    }
    for (int rank = 0; rank < n; ++rank) {
      cudaGraphExecDestroy(graphs[rank]);
      for (cudaEvent_t event : events[rank])
        cudaEventDestroy(event);
    }
    testing::expect_all_ok(rig_);
    const auto median = [](std::vector<double>& v) {
      if (v.empty()) return 0.0;
      std::sort(v.begin(), v.end());
      return v[v.size() / 2];
    };
    return {median(pair_us), median(dispatch_us), median(combine_us)};
  }

 private:
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  void make(int index) {
    Rank& own = at(index);
    RigRank& place = rig_.use(index);
    const int H = options_.hidden, K = options_.top_k, R = rig_.size();
    const std::size_t T = T_;
    const int hidden_bytes = options_.fp8_dispatch ? H : 2 * H;
    own.hidden = DeviceBuffer(place.device, T * hidden_bytes);
    own.scales = DeviceBuffer(place.device, T * 4 * ((H + 127) / 128));
    own.ids = DeviceBuffer(place.device, T * K * 4);
    own.weights = DeviceBuffer(place.device, T * K * 4);
    own.output = DeviceBuffer(place.device, T * 2 * H);
    own.tokens = DeviceBuffer(place.device, R * T * 4);
    own.places = DeviceBuffer(place.device, R * T * 4);
    own.wrong = DeviceBuffer(place.device, 4);
    MOE_EP_CUDA_CHECK(cudaMemset(own.wrong.data(), 0, 4));
    if (options_.external) own.experts = DeviceBuffer(place.device, R * T * 2 * H);
    fill_rows<<<512, 512, 0, place.stream>>>(reinterpret_cast<std::uint32_t*>(own.hidden.data()),
                                             index, T_, hidden_bytes / 4, false);
    std::mt19937 random(1000 * T_ + index);
    for (int token = 0; token < T_; ++token) {
      std::vector<int> picked;
      while (static_cast<int>(picked.size()) < K) {
        const int id = static_cast<int>(random() % options_.experts);
        if (std::find(picked.begin(), picked.end(), id) == picked.end()) picked.push_back(id);
      }
      own.hosts_ids.insert(own.hosts_ids.end(), picked.begin(), picked.end());
    }
    own.ids.upload(own.hosts_ids.data(), own.ids.size());

    protocol::DispatchParams& step = own.dispatch;
    step.workspace = place.workspace;
    step.active = RankMask::first(R);
    step.num_tokens = step.tokens_per_rank = T_;
    step.ownership = protocol::Ownership::make(options_.experts, R);
    step.top_k = K;
    step.topk_ids = own.ids.data();
    step.topk_ids_stride = 4 * K;
    step.ids_payload = 1;
    step.timeout_ns = 5'000'000'000ull;
    auto& fields = step.signature.fields;
    fields[protocol::kTokensPerRank] = T_;
    fields[protocol::kNumExperts] = options_.experts;
    fields[protocol::kTopK] = K;
    const Transport transport = options_.lamport ? Transport::kLamport : Transport::kFence;
    fields[protocol::kTransport] = static_cast<std::int32_t>(transport);
    const auto add = [&](const DeviceBuffer& rows, int bytes) {
      step.payloads[step.num_payloads] = {rows.data(), bytes};
      fields[protocol::kFirstRowBytes + step.num_payloads++] = bytes;
    };
    add(own.hidden, hidden_bytes);
    add(own.ids, 4 * K);
    add(own.weights, 4 * K);
    if (options_.fp8_dispatch) add(own.scales, 4 * ((H + 127) / 128));
    fields[protocol::kNumPayloads] = step.num_payloads;
    step.placement = protocol::PayloadPlacement::make(
        place.workspace.layout, T_, fields + protocol::kFirstRowBytes, step.num_payloads);

    protocol::CombineParams& combine = own.combine;
    combine.workspace = place.workspace;
    combine.num_tokens = combine.tokens_per_rank = T_;
    combine.elements = H;
    combine.row_bytes = 2 * H;
    combine.format =
        protocol::kCombineBf16 | (options_.fp8_combine ? protocol::kCombineFp8Wire : 0);
    combine.timeout_ns = step.timeout_ns;
    combine.transport = transport;
    if (options_.external) {
      combine.expert_output = own.experts.data();
      combine.expert_output_stride = 2 * H;
    }
    own.out = {own.output.data(), 2 * H, kBFloat16};
    MOE_EP_CUDA_CHECK(cudaStreamSynchronize(place.stream));
  }

  // Where tokens go, for the checks.
  void map(int index) {
    const int R = rig_.size(), K = options_.top_k;
    std::vector<int> tokens(static_cast<std::size_t>(R) * T_, -1), places(tokens);
    for (int src = 0; src < R; ++src) {
      int row = 0;
      for (int token = 0; token < T_; ++token) {
        for (int k = 0; k < K; ++k) {
          if (at(src).dispatch.ownership.owner(at(src).hosts_ids[token * K + k]) != index) continue;
          tokens[src * T_ + (options_.lamport ? token : row++)] = token;
          break;
        }
      }
    }
    at(index).tokens.upload(tokens.data(), 4 * tokens.size());
    for (int peer = 0; peer < R; ++peer) {
      int row = 0;
      for (int token = 0; token < T_; ++token) {
        for (int k = 0; k < K; ++k) {
          if (at(index).dispatch.ownership.owner(at(index).hosts_ids[token * K + k]) != peer)
            continue;
          places[peer * T_ + token] = options_.lamport ? token : row++;
          if (peer != index) at(index).remote_rows += 1;
          break;
        }
      }
    }
    at(index).places.upload(places.data(), 4 * places.size());
  }

  Rig& rig_;
  const Options& options_;
  const int T_;
  std::vector<Rank> ranks_;
};

// GB/s each way with copy engines busy both ways.
double copy_engine_rate() {
  constexpr std::size_t kBytes = 256 << 20;
  constexpr int kRounds = 8;
  DeviceBuffer from[2] = {DeviceBuffer(0, kBytes), DeviceBuffer(1, kBytes)};
  DeviceBuffer to[2] = {DeviceBuffer(0, kBytes), DeviceBuffer(1, kBytes)};
  cudaStream_t streams[2];
  cudaEvent_t begin[2], end[2];
  for (int d = 0; d < 2; ++d) {
    MOE_EP_CUDA_CHECK(cudaSetDevice(d));
    cudaDeviceEnablePeerAccess(1 - d, 0);
    cudaGetLastError();
    MOE_EP_CUDA_CHECK(cudaStreamCreateWithFlags(&streams[d], cudaStreamNonBlocking));
    MOE_EP_CUDA_CHECK(cudaEventCreate(&begin[d]));
    MOE_EP_CUDA_CHECK(cudaEventCreate(&end[d]));
  }
  double best = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    for (int d = 0; d < 2; ++d) {
      MOE_EP_CUDA_CHECK(cudaSetDevice(d));
      MOE_EP_CUDA_CHECK(cudaEventRecord(begin[d], streams[d]));
      for (int i = 0; i < kRounds; ++i) {
        MOE_EP_CUDA_CHECK(
            cudaMemcpyPeerAsync(to[1 - d].data(), 1 - d, from[d].data(), d, kBytes, streams[d]));
      }
      MOE_EP_CUDA_CHECK(cudaEventRecord(end[d], streams[d]));
    }
    double slowest = 0;
    for (int d = 0; d < 2; ++d) {
      MOE_EP_CUDA_CHECK(cudaSetDevice(d));
      MOE_EP_CUDA_CHECK(cudaStreamSynchronize(streams[d]));
      float ms = 0;
      MOE_EP_CUDA_CHECK(cudaEventElapsedTime(&ms, begin[d], end[d]));
      slowest = std::max<double>(slowest, ms);
    }
    best = std::max(best, kRounds * kBytes / slowest / 1e6);
  }
  return best;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::atoll(argv[++i]) : 0; };
    if (name == "--ranks")
      options.ranks = static_cast<int>(value());
    else if (name == "--one-gpu")
      options.one_gpu = true;
    else if (name == "--lamport")
      options.lamport = true;
    else if (name == "--fp8-dispatch")
      options.fp8_dispatch = true;
    else if (name == "--fp8-combine")
      options.fp8_combine = true;
    else if (name == "--external")
      options.external = true;
    else if (name == "--no-pdl")
      options.pdl = cuda::Pdl::kOff;
    else if (name == "--late-pdl")
      options.pdl = cuda::Pdl::kLate;
    else if (name == "--max-sms")
      options.max_sms = static_cast<int>(value());
    else if (name == "--hidden")
      options.hidden = static_cast<int>(value());
    else if (name == "--top-k")
      options.top_k = static_cast<int>(value());
    else if (name == "--experts")
      options.experts = static_cast<int>(value());
    else if (name == "--push-bytes")
      options.tuning.push_bytes = value();
    else if (name == "--push-percent")
      options.tuning.push_percent = options.tuning.fp8_push_percent = static_cast<int>(value());
    else if (name == "--part-bytes")
      options.tuning.part_bytes = value();
    else if (name == "--threads")
      options.tuning.threads = static_cast<int>(value());
    else if (name == "--dispatch-threads")
      options.dispatch_tuning.threads = static_cast<int>(value());
    else if (name == "--tokens" && i + 1 < argc) {
      options.tokens.clear();
      for (char* at = argv[++i]; *at != '\0';) {
        options.tokens.push_back(static_cast<int>(std::strtol(at, &at, 10)));
        if (*at == ',') ++at;
      }
    } else {
      std::fprintf(stderr, "unknown option %s\n", name.c_str());
      std::exit(2);
    }
  }
  return options;
}

double target_us(const Options& options, int T) {
  if (options.hidden != 7168 || options.top_k != 8 || options.ranks != 2) return 0;
  if (options.lamport) {
    // {T, us of BF16 rows, of FP8 rows}
    constexpr double kTargets[][3] = {{1, 4.4, 4.4}, {8, 5, 0},         {32, 7, 0},
                                      {64, 9.6, 0},  {128, 14.7, 12.2}, {256, 25.2, 0},
                                      {1024, 87, 0}, {4096, 330, 0},    {8192, 650, 500}};
    for (const auto& target : kTargets) {
      if (target[0] == T) return target[options.fp8_dispatch ? 2 : 1];
    }
    return 0;
  }
  if (options.fp8_dispatch) return T != 8192 ? 0 : options.fp8_combine ? 370 : 515;
  if (options.fp8_combine) return 0;
  return T <= 8 ? 11 : T == 8192 ? 672 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const bool one_gpu = options.one_gpu || testing::num_gpus() < 2;
  const double link = one_gpu ? 0 : copy_engine_rate();
  std::string command;
  for (int i = 1; i < argc; ++i)
    command += std::string(" ") + argv[i];
  std::printf("# cuda_pair%s: %d ranks on %s, copy engines both ways %.1f GB/s\n", command.c_str(),
              options.ranks, one_gpu ? "one GPU" : "GPUs of their own", link);
  for (const int T : options.tokens) {
    std::vector<int> devices;
    for (int rank = 0; rank < options.ranks; ++rank)
      devices.push_back(one_gpu ? 0 : rank % testing::num_gpus());
    const std::int64_t hidden_row = (options.fp8_dispatch ? 1 : 2) * options.hidden;
    const std::int64_t dispatch_row =
        hidden_row + 8 * options.top_k +
        (options.fp8_dispatch ? 4 * ((options.hidden + 127) / 128) : 0);
    protocol::TransportRegions regions;
    if (options.lamport) {
      regions.lamport = {
          .max_tokens = T,
          .top_k = options.top_k,
          .value_bytes = hidden_row,
          .scale_bytes = dispatch_row - hidden_row,
          .combine_bytes = 2 * options.hidden,
          .words = options.fp8_dispatch ? protocol::DataWords::kFp8 : protocol::DataWords::kBf16};
    }
    Rig rig(devices, protocol::WorkspaceLayout::make(
                         options.ranks, T, 0,
                         protocol::WorkspaceLayout::required_bytes(
                             options.ranks, T, 0, dispatch_row, 2 * options.hidden, regions),
                         regions));
    for (int rank = 0; rank < rig.size(); ++rank) {
      rig[rank].options.pdl = options.pdl;
      rig[rank].options.max_sms = options.max_sms;
    }
    Pair pair(rig, options, T);
    const long wrong = pair.check();
    if (wrong != 0) {
      std::printf("T %5d  WRONG: %ld words\n", T, wrong);
      continue;
    }
    const int pairs = T >= 2048 ? 6 : 20;
    const double us = pair.time(pairs, 20, false)[0];
    const double target = target_us(options, T);
    std::printf("T %5d  pair %8.2f us", T, us);
    if (target > 0) std::printf("  target %4.0f (%.2f)", target, us / target);
    if (T >= 1024) {
      const auto phases = pair.time(pairs, 10, true);
      const double d = pair.dispatch_bytes() / phases[1] / 1e3;
      const double c = pair.combine_bytes() / phases[2] / 1e3;
      std::printf("  dispatch %7.1f us %5.1f GB/s", phases[1], d);
      if (link > 0) std::printf(" (%.1f %%)", 100 * d / link);
      std::printf("  combine %7.1f us %5.1f GB/s", phases[2], c);
      if (link > 0) std::printf(" (%.1f %%)", 100 * c / link);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}
