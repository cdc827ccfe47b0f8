#include "step.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cuda/kernels/dispatch.hpp"
#include "cuda/kernels/maintenance.hpp"
#include "protocol/fp8_wire.hpp"
#include "protocol/scale_layout.hpp"

namespace moe_ep::testing {
namespace {

int element_bytes(std::int32_t format) {
  return format == protocol::kCombineFp32 ? 4 : 2;
}

std::int64_t quantised_block(OutputFormat format) {
  return format == OutputFormat::kNvfp4 ? 16 : 32;
}

std::int64_t output_row_bytes(const StepShape& shape) {
  if (shape.output == OutputFormat::kPlain) return shape.elements * itemsize(shape.output_dtype);
  return shape.output == OutputFormat::kMxfp8 ? shape.elements : (shape.elements + 1) / 2;
}

}  // namespace

std::int64_t StepShape::combine_row_bytes() const {
  return elements * element_bytes(format);
}

std::vector<int> StepShape::row_bytes() const {
  std::vector<int> bytes{hidden_bytes, ids_converted ? 4 * top_k : (wide_ids ? 8 : 4) * top_k};
  if (weight_bytes > 0) bytes.push_back(weight_bytes);
  bytes.insert(bytes.end(), extra_bytes.begin(), extra_bytes.end());
  return bytes;
}

std::int64_t StepShape::dispatch_row_bytes() const {
  std::int64_t sum = 0;
  for (const int bytes : row_bytes())
    sum += bytes;
  return sum;
}

Step::Step(Rig& rig, const StepShape& shape, Random& random)
    : rig_(rig), shape_(shape), ranks_(static_cast<std::size_t>(rig.size())) {
  for (int rank = 0; rank < rig.size(); ++rank)
    allocate(rank, random);
  refill(random);
}

void Step::refill(Random& random) {
  for (int rank = 0; rank < rig_.size(); ++rank)
    fill(rank, random);
  // Expert rows need everybody's routing.
  for (int rank = 0; rank < rig_.size(); ++rank) {
    StepRank& own = ranks_[static_cast<std::size_t>(rank)];
    const auto row = static_cast<std::size_t>(shape_.combine_row_bytes());
    const int size = element_bytes(shape_.format);
    for (std::byte& byte : own.expert_rows)
      byte = static_cast<std::byte>(0xff);  // NaNs
    for (int src = 0; src < rig_.size(); ++src) {
      const std::vector<int> tokens = visitors(src, rank);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const int index = src * shape_.tokens_per_rank + row_of(tokens[i], static_cast<int>(i));
        std::byte* to = own.expert_rows.data() + static_cast<std::size_t>(index) * row;
        for (int element = 0; element < shape_.elements; ++element) {
          // Values of all sizes, now and then anything at all.
          std::uint32_t bits = static_cast<std::uint32_t>(random());
          if (bits % 128 == 1) {
            bits = ~0u;  // twice in a row: a word that landing rows cannot hold
          } else if (bits % 64 != 0) {
            const float value = std::normal_distribution<float>(0.0f, 2.0f)(random);
            bits = shape_.format == protocol::kCombineFp32   ? protocol::Fp32::from_float(value)
                   : shape_.format == protocol::kCombineFp16 ? protocol::Fp16::from_float(value)
                                                             : protocol::Bf16::from_float(value);
          }
          std::memcpy(to + element * size, &bits, static_cast<std::size_t>(size));
        }
      }
    }
    rig_.use(rank);
    const auto stride = static_cast<std::size_t>(own.combine.expert_output_stride);
    if (own.experts_write != StepRank::Experts::kElsewhere) {
      own.expert_memory.upload(own.expert_rows.data(), own.expert_rows.size());
    } else {
      std::vector<std::byte> spread(own.expert_memory.size(), std::byte{0xee});
      const std::size_t offset =
          static_cast<std::size_t>(own.combine.expert_output - own.expert_memory.data());
      for (std::size_t i = 0; i * row < own.expert_rows.size(); ++i) {
        std::memcpy(spread.data() + offset + i * stride, own.expert_rows.data() + i * row, row);
      }
      own.expert_memory.upload(spread.data(), spread.size());
    }
  }
}

void Step::allocate(int rank, Random& random) {
  StepRank& own = ranks_[static_cast<std::size_t>(rank)];
  RigRank& place = rig_.use(rank);
  const auto capacity = static_cast<std::size_t>(shape_.tokens_per_rank);
  const auto all_rows = static_cast<std::size_t>(rig_.size()) * capacity;
  const std::vector<int> row_bytes = shape_.row_bytes();

  protocol::DispatchParams& step = own.dispatch;
  step.workspace = place.workspace;
  step.active = shape_.active;
  step.tokens_per_rank = shape_.tokens_per_rank;
  step.ownership = protocol::Ownership::make(shape_.num_experts, rig_.size());
  step.top_k = shape_.top_k;
  step.wide_ids = shape_.wide_ids;
  step.ids_payload = shape_.ids_converted ? 1 : -1;
  step.invalid_expert_id = shape_.invalid_expert_id;
  step.num_payloads = static_cast<std::int32_t>(row_bytes.size());
  step.timeout_ns = shape_.timeout_ns;
  auto& fields = step.signature.fields;
  fields[protocol::kTokensPerRank] = shape_.tokens_per_rank;
  fields[protocol::kNumExperts] = shape_.num_experts;
  fields[protocol::kTopK] = shape_.top_k;
  fields[protocol::kTransport] = static_cast<std::int32_t>(shape_.transport);
  fields[protocol::kNumPayloads] = step.num_payloads;
  for (std::size_t payload = 0; payload < row_bytes.size(); ++payload) {
    fields[protocol::kFirstRowBytes + static_cast<int>(payload)] = row_bytes[payload];
  }
  step.placement =
      protocol::PayloadPlacement::make(place.workspace.layout, shape_.tokens_per_rank,
                                       fields + protocol::kFirstRowBytes, step.num_payloads);
  const int id_bytes = shape_.wide_ids ? 8 : 4;
  step.topk_ids_stride = id_bytes * (shape_.top_k + pick(random, 0, 2));
  own.ids_memory =
      DeviceBuffer(place.device, capacity * static_cast<std::size_t>(step.topk_ids_stride));
  step.topk_ids = own.ids_memory.data();
  for (std::size_t payload = 0; payload < row_bytes.size(); ++payload) {
    // Rows at odd places, now and then.
    const int odd = pick(random, 0, 2) == 0 ? pick(random, 0, 17) : 0;
    const std::int64_t stride =
        row_bytes[payload] + (pick(random, 0, 2) == 0 ? pick(random, 0, 33) : 0);
    own.payload_memory.emplace_back(place.device, capacity * static_cast<std::size_t>(stride) + 32);
    step.payloads[payload] = {own.payload_memory.back().data() + odd, stride};
    own.payload_snapshot.emplace_back(place.device,
                                      all_rows * static_cast<std::size_t>(row_bytes[payload]));
  }
  own.rows.resize(row_bytes.size());
  own.counts_snapshot = DeviceBuffer(place.device, 4 * static_cast<std::size_t>(rig_.size()));
  const auto experts = static_cast<std::size_t>(place.workspace.layout.eplb_experts);
  own.stats_memory = DeviceBuffer(place.device, 4 * experts);
  own.stats_snapshot =
      DeviceBuffer(place.device, 4 * experts * static_cast<std::size_t>(rig_.size()));
  if (shape_.stats) {
    step.eplb_local_stats = reinterpret_cast<const std::int32_t*>(own.stats_memory.data());
  }

  const std::int64_t row = shape_.combine_row_bytes();
  const int size = element_bytes(shape_.format);
  own.experts_write = shape_.chained || pick(random, 0, 1) == 0 ? StepRank::Experts::kElsewhere
                      : shape_.hidden_bytes == row              ? StepRank::Experts::kDispatchedRows
                                                                : StepRank::Experts::kCombineRegion;
  protocol::CombineParams& combine = own.combine;
  combine.workspace = place.workspace;
  combine.active = shape_.active;
  combine.tokens_per_rank = shape_.tokens_per_rank;
  combine.elements = shape_.elements;
  combine.row_bytes = row;
  combine.format = shape_.format | (shape_.fp8_wire ? protocol::kCombineFp8Wire : 0);
  combine.timeout_ns = shape_.timeout_ns;
  combine.transport = shape_.transport;
  own.expert_rows.resize(all_rows * static_cast<std::size_t>(row));
  if (own.experts_write != StepRank::Experts::kElsewhere) {
    own.expert_memory = DeviceBuffer(place.device, own.expert_rows.size());
    if (own.experts_write == StepRank::Experts::kDispatchedRows) {
      combine.expert_output = step.row(rank, 0, 0, 0);
      combine.expert_output_stride = row;
    }
  } else {
    combine.expert_output_stride = row + (pick(random, 0, 1) == 0 ? size * pick(random, 0, 9) : 0);
    const int offset = pick(random, 0, 2) == 0 ? size * pick(random, 0, 8) : 0;
    own.expert_memory = DeviceBuffer(
        place.device, all_rows * static_cast<std::size_t>(combine.expert_output_stride) + 64);
    combine.expert_output = own.expert_memory.data() + offset;
  }

  const std::int64_t out_row = output_row_bytes(shape_);
  own.output_stride = out_row;
  own.output_memory = DeviceBuffer(place.device, capacity * static_cast<std::size_t>(out_row) + 16);
  own.output.rows = own.output_memory.data();
  own.output.stride = out_row;
  own.output.dtype = shape_.output_dtype;
  own.output.format = shape_.output;
  own.output.sf_layout = shape_.sf_layout;
  own.output.scalar_scale = own.scalar_scale = pick(random, 0, 1) == 0 ? 1.0f : 3.25f;
  if (shape_.output != OutputFormat::kPlain) {
    const std::int64_t block = quantised_block(shape_.output);
    own.scale_bytes = protocol::scale_matrix_bytes(shape_.sf_layout, shape_.tokens_per_rank,
                                                   (shape_.elements + block - 1) / block);
    own.scale_memory = DeviceBuffer(place.device, static_cast<std::size_t>(own.scale_bytes));
    own.output.scales = reinterpret_cast<std::uint8_t*>(own.scale_memory.data());
  }
}

void Step::fill(int rank, Random& random) {
  StepRank& own = ranks_[static_cast<std::size_t>(rank)];
  rig_.use(rank);
  const int top_k = shape_.top_k;
  const bool takes_part = shape_.active.test(rank);
  const int style = pick(random, 0, 9);
  own.num_tokens = !takes_part || style == 0 ? 0
                   : style <= 3              ? shape_.tokens_per_rank
                                             : pick(random, 0, shape_.tokens_per_rank);
  if (!shape_.num_tokens.empty()) {
    own.num_tokens = shape_.num_tokens[static_cast<std::size_t>(rank)];
  }
  own.dispatch.num_tokens = own.combine.num_tokens = own.num_tokens;
  int target = pick(random, 0, 3) == 0 ? pick(random, 0, rig_.size() - 1) : -1;
  if (shape_.target >= 0) target = shape_.target;
  const auto& ownership = own.dispatch.ownership;
  own.ids.assign(static_cast<std::size_t>(own.num_tokens * top_k), 0);
  for (std::int64_t& id : own.ids) {
    const int kind = shape_.target >= 0 ? 0 : pick(random, 0, 9);
    id = pick(random, 0, shape_.num_experts - 1);
    if (target >= 0 && kind < 8 && ownership.num_local(target) > 0) {
      id = ownership.first_expert(target) + id % ownership.num_local(target);
    }
    if (kind == 9) {
      id = shape_.wide_ids && pick(random, 0, 1) == 0
               ? (std::int64_t{1} << 32) + 3  // must not become expert 3
               : (pick(random, 0, 1) == 0 ? -1 - pick(random, 0, 9)
                                          : shape_.num_experts + pick(random, 0, 9));
    }
  }
  std::vector<std::byte> ids(own.ids_memory.size(), std::byte{0x11});
  for (int token = 0; token < own.num_tokens; ++token) {
    for (int k = 0; k < top_k; ++k) {
      const std::int64_t id = own.ids[static_cast<std::size_t>(token * top_k + k)];
      const auto narrow = static_cast<std::int32_t>(id);
      std::byte* to = ids.data() + token * own.dispatch.topk_ids_stride;
      if (shape_.wide_ids) {
        std::memcpy(to + 8 * k, &id, 8);
      } else {
        std::memcpy(to + 4 * k, &narrow, 4);
      }
    }
  }
  own.ids_memory.upload(ids.data(), ids.size());

  const std::vector<int> row_bytes = shape_.row_bytes();
  for (std::size_t payload = 0; payload < row_bytes.size(); ++payload) {
    const auto bytes = static_cast<std::size_t>(row_bytes[payload]);
    own.rows[payload].resize(static_cast<std::size_t>(own.num_tokens) * bytes);
    // Bytes that are alike now and then, as those of sentinels are.
    for (std::size_t at = 0; at < own.rows[payload].size(); ++at) {
      constexpr std::byte kSentinels[] = {std::byte{0xff}, std::byte{0x88}};
      own.rows[payload][at] =
          pick(random, 0, 7) != 0 ? static_cast<std::byte>(random()) : kSentinels[at / 8 % 2];
    }
    if (pick(random, 0, 3) == 0) {
      std::fill(own.rows[payload].begin(), own.rows[payload].end(), std::byte{0xff});
    }
    const protocol::Payload& from = own.dispatch.payloads[payload];
    std::vector<std::byte> spread(own.payload_memory[payload].size(), std::byte{0x22});
    const auto offset = static_cast<std::size_t>(from.rows - own.payload_memory[payload].data());
    for (std::size_t token = 0; token * bytes < own.rows[payload].size(); ++token) {
      std::memcpy(spread.data() + offset + token * static_cast<std::size_t>(from.stride),
                  own.rows[payload].data() + token * bytes, bytes);
    }
    own.payload_memory[payload].upload(spread.data(), spread.size());
    if (payload != 1 || !shape_.ids_converted) continue;
    for (std::size_t i = 0; i < own.ids.size(); ++i) {
      const std::int32_t id = ownership.is_void(own.ids[i]) ? shape_.invalid_expert_id
                                                            : static_cast<std::int32_t>(own.ids[i]);
      std::memcpy(own.rows[payload].data() + 4 * i, &id, 4);
    }
  }
  own.stats.resize(static_cast<std::size_t>(own.dispatch.workspace.layout.eplb_experts));
  for (std::int32_t& value : own.stats)
    value = static_cast<std::int32_t>(random());
  own.stats_memory.upload(own.stats.data(), 4 * own.stats.size());
}

bool Step::visits(int src, int token, int dst) const {
  const StepRank& from = ranks_[static_cast<std::size_t>(src)];
  if (!shape_.active.test(dst)) return false;
  for (int k = 0; k < shape_.top_k; ++k) {
    const std::int64_t id = from.ids[static_cast<std::size_t>(token * shape_.top_k + k)];
    const auto& ownership = from.dispatch.ownership;
    if (ownership.is_void(id)) continue;
    const int first = ownership.first_expert(dst);
    if (id >= first && id < first + ownership.num_local(dst)) return true;
  }
  return false;
}

std::vector<int> Step::visitors(int src, int dst) const {
  std::vector<int> tokens;
  for (int token = 0; token < ranks_[static_cast<std::size_t>(src)].num_tokens; ++token) {
    if (visits(src, token, dst)) tokens.push_back(token);
  }
  return tokens;
}

void Step::dispatch(int rank) {
  if (!shape_.active.test(rank)) return;
  StepRank& own = ranks_[static_cast<std::size_t>(rank)];
  RigRank& place = rig_.use(rank);
  cuda::LaunchOptions options = place.options;
  if (shape_.mask_in_memory) {
    MOE_EP_CUDA_CHECK(cuda::launch_store_mask(place.mask, shape_.active, place.stream));
    options.default_mask = place.mask;
    own.dispatch.active = RankMask::first(rig_.size());  // must not be looked at
  }
  MOE_EP_CUDA_CHECK(cuda::launch_dispatch(own.dispatch, options, place.stream));
  if (shape_.chained) return;
  const auto& workspace = place.workspace;
  for (std::size_t payload = 0; payload < own.rows.size(); ++payload) {
    MOE_EP_CUDA_CHECK(cudaMemcpyAsync(
        own.payload_snapshot[payload].data(),
        own.dispatch.row(rank, static_cast<std::int32_t>(payload), 0, 0),
        own.payload_snapshot[payload].size(), cudaMemcpyDeviceToDevice, place.stream));
  }
  MOE_EP_CUDA_CHECK(cudaMemcpyAsync(own.counts_snapshot.data(), workspace.recv_counts(),
                                    own.counts_snapshot.size(), cudaMemcpyDeviceToDevice,
                                    place.stream));
  if (shape_.stats) {
    MOE_EP_CUDA_CHECK(
        cudaMemcpyAsync(own.stats_snapshot.data(), workspace.own() + workspace.layout.eplb,
                        own.stats_snapshot.size(), cudaMemcpyDeviceToDevice, place.stream));
  }
}

void Step::combine(int rank) {
  if (!shape_.active.test(rank)) return;
  StepRank& own = ranks_[static_cast<std::size_t>(rank)];
  RigRank& place = rig_.use(rank);
  if (own.experts_write != StepRank::Experts::kElsewhere) {
    std::byte* to = own.experts_write == StepRank::Experts::kCombineRegion
                        ? own.combine.row(rank, 0, 0)
                        : own.dispatch.row(rank, 0, 0, 0);
    MOE_EP_CUDA_CHECK(cudaMemcpyAsync(to, own.expert_memory.data(), own.expert_memory.size(),
                                      cudaMemcpyDeviceToDevice, place.stream));
  }
  if (!shape_.chained) {
    MOE_EP_CUDA_CHECK(
        cudaMemsetAsync(own.output_memory.data(), 0xcd, own.output_memory.size(), place.stream));
    if (own.scale_bytes > 0) {
      MOE_EP_CUDA_CHECK(
          cudaMemsetAsync(own.scale_memory.data(), 0xcd, own.scale_memory.size(), place.stream));
    }
  }
  MOE_EP_CUDA_CHECK(
      cuda::launch_combine(own.combine, own.output, place.options, place.stream, own.tuning));
}

void Step::run() {
  for (int rank = 0; rank < rig_.size(); ++rank)
    dispatch(rank);
  for (int rank = 0; rank < rig_.size(); ++rank)
    combine(rank);
}

void Step::check() {
  expect_all_ok(rig_);
  for (int rank = 0; rank < rig_.size(); ++rank) {
    if (!shape_.active.test(rank)) continue;
    rig_.use(rank);
    if (!shape_.chained) check_arrivals(rank);
    check_sums(rank);
  }
}

}  // namespace moe_ep::testing
