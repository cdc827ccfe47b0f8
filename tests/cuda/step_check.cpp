// The naive reference: what must have arrived, and the sums element by element.
#include <cmath>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "protocol/block_scale.hpp"
#include "protocol/fp8_wire.hpp"
#include "protocol/reduce.hpp"
#include "protocol/scale_layout.hpp"
#include "protocol/transport/sentinel.hpp"
#include "step.hpp"

namespace moe_ep::testing {
namespace {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

float read_float(const std::byte* from, std::int32_t format) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, from, format == protocol::kCombineFp32 ? 4 : 2);
  if (format == protocol::kCombineFp32) return protocol::Fp32::to_float(bits);
  const auto narrow = static_cast<std::uint16_t>(bits);
  return format == protocol::kCombineFp16 ? protocol::Fp16::to_float(narrow)
                                          : protocol::Bf16::to_float(narrow);
}

// A row as it reads after it has gone through landing rows.
std::vector<std::byte> canonical_row(const std::byte* row, std::size_t bytes,
                                     protocol::DataWords words) {
  std::vector<std::byte> arrives(row, row + bytes);
  for (std::size_t at = 0; at + 4 <= bytes; at += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, row + at, 4);
    word = protocol::canonical(word, words);
    std::memcpy(arrives.data() + at, &word, 4);
  }
  return arrives;
}

// A row as it reads after it has gone over the FP8 wire: codes and scales.
struct WireRow {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  explicit WireRow(const std::vector<float>& row) : codes(row.size()) {
    for (std::size_t first = 0; first < row.size(); first += protocol::kFp8BlockElements) {
      const std::size_t end = std::min(row.size(), first + protocol::kFp8BlockElements);
      std::uint32_t amax = 0;
      for (std::size_t i = first; i < end; ++i) {
        amax = std::max(amax, protocol::fp8_amax_bits(row[i]));
      }
      scales.push_back(protocol::fp8_scale(amax));
      const auto encoder = protocol::fp8_encoder(scales.back());
      for (std::size_t i = first; i < end; ++i)
        codes[i] = protocol::fp8_encode(row[i], encoder);
    }
  }
};

float sum_of(const std::vector<std::vector<float>>& rows, std::size_t element) {
  return protocol::sum_element(static_cast<int>(rows.size()),
                               [&](int i) { return rows[static_cast<std::size_t>(i)][element]; });
}

float wire_sum_of(const std::vector<WireRow>& rows, std::size_t element) {
  const std::size_t block = element / protocol::kFp8BlockElements;
  float max_scale = 0.0f;
  for (const WireRow& row : rows)
    max_scale = std::max(max_scale, row.scales[block]);
  const float lift = protocol::fp8_lift(max_scale);
  const float sum = protocol::sum_element(static_cast<int>(rows.size()), [&](int i) {
    const WireRow& row = rows[static_cast<std::size_t>(i)];
    return protocol::fp8_decode(row.codes[element], protocol::mul_rn(row.scales[block], lift));
  });
  return protocol::fp8_unlift(sum, lift);
}

template <class Codec>
bool same_plain(const std::byte* got, float want) {
  typename Codec::Bits bits;
  std::memcpy(&bits, got, sizeof bits);
  const auto wanted = Codec::from_float(want);
  return std::isnan(want) ? std::isnan(Codec::to_float(bits)) : bits == wanted;
}

template <class Format>
void quantise(const std::vector<float>& sums, float scalar, std::vector<std::uint8_t>& values,
              std::vector<std::uint8_t>& scales) {
  for (std::size_t first = 0; first < sums.size(); first += Format::kBlockElements) {
    const int count =
        static_cast<int>(std::min<std::size_t>(sums.size() - first, Format::kBlockElements));
    scales.push_back(protocol::quantize_block<Format>(
        sums.data() + first, count, scalar, values.data() + first / Format::kElementsPerByte));
  }
}

}  // namespace

void Step::check_arrivals(int rank) {
  const StepRank& own = ranks_[static_cast<std::size_t>(rank)];
  const auto counts = own.counts_snapshot.download();
  const std::vector<int> row_bytes = shape_.row_bytes();
  for (int src = 0; src < rig_.size(); ++src) {
    const std::vector<int> tokens = visitors(src, rank);
    std::int32_t count = 0;
    std::memcpy(&count, counts.data() + 4 * src, 4);
    if (count != static_cast<std::int32_t>(tokens.size())) {
      fail("rank ", rank, " counts ", count, " tokens of rank ", src, ", not ", tokens.size());
    }
  }
  for (std::size_t payload = 0; payload < row_bytes.size(); ++payload) {
    const auto bytes = static_cast<std::size_t>(row_bytes[payload]);
    const auto got = own.payload_snapshot[payload].download();
    for (int src = 0; src < rig_.size(); ++src) {
      const StepRank& from = ranks_[static_cast<std::size_t>(src)];
      const std::vector<int> tokens = visitors(src, rank);
      const std::byte* block =
          got.data() + static_cast<std::size_t>(src * shape_.tokens_per_rank) * bytes;
      std::vector<bool> holds(static_cast<std::size_t>(shape_.tokens_per_rank), false);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const auto index = static_cast<std::size_t>(row_of(tokens[i], static_cast<int>(i)));
        holds[index] = true;
        const std::byte* sent =
            from.rows[payload].data() + static_cast<std::size_t>(tokens[i]) * bytes;
        const bool travels = shape_.transport == Transport::kLamport && payload == 0 && src != rank;
        const std::vector<std::byte> want =
            travels ? canonical_row(sent, bytes, own.dispatch.workspace.layout.lamport.words)
                    : std::vector<std::byte>(sent, sent + bytes);
        if (std::memcmp(block + index * bytes, want.data(), bytes) != 0) {
          fail("rank ", rank, ": row ", index, " of rank ", src, " (token ", tokens[i],
               ") differs in payload ", payload, " of ", bytes, " bytes");
        }
      }
      if (payload != 1 || !shape_.ids_converted) continue;
      for (std::size_t at = 0; at < holds.size() * bytes; at += 4) {
        if (holds[at / bytes]) continue;
        std::int32_t id = 0;
        std::memcpy(&id, block + at, 4);
        if (id != shape_.invalid_expert_id) {
          fail("rank ", rank, ": row ", at / bytes, " of rank ", src, " has no token, but id ", id);
        }
      }
    }
  }
  if (!shape_.stats) return;
  const auto stats = own.stats_snapshot.download();
  for (int src = 0; src < rig_.size(); ++src) {
    const StepRank& from = ranks_[static_cast<std::size_t>(src)];
    for (std::size_t expert = 0; expert < from.stats.size(); ++expert) {
      std::int32_t got = 0;
      std::memcpy(
          &got, stats.data() + 4 * (static_cast<std::size_t>(src) * from.stats.size() + expert), 4);
      const std::int32_t want = shape_.active.test(src) ? from.stats[expert] : 0;
      if (got != want) fail("rank ", rank, ": statistic ", expert, " of rank ", src, " differs");
    }
  }
}

void Step::check_sums(int rank) {
  const StepRank& own = ranks_[static_cast<std::size_t>(rank)];
  const auto output = own.output_memory.download();
  const auto elements = static_cast<std::size_t>(shape_.elements);
  const auto row = static_cast<std::size_t>(shape_.combine_row_bytes());
  const std::size_t size = row / elements;
  const bool wire =
      shape_.fp8_wire && protocol::fp8_wire_pays(shape_.elements, static_cast<std::int64_t>(size));
  std::vector<std::uint8_t> scales;
  if (own.scale_bytes > 0) {
    const auto bytes = own.scale_memory.download();
    scales.resize(bytes.size());
    std::memcpy(scales.data(), bytes.data(), bytes.size());
  }
  std::vector<int> next_row(ranks_.size(), 0);
  const std::int64_t block = shape_.output == OutputFormat::kNvfp4 ? 16 : 32;
  const std::int64_t cols = (shape_.elements + block - 1) / block;
  for (int token = 0; token < own.num_tokens; ++token) {
    std::vector<std::vector<float>> rows;
    std::vector<WireRow> wires;
    for (int peer = 0; peer < rig_.size(); ++peer) {
      if (!visits(rank, token, peer)) continue;
      const auto at = static_cast<std::size_t>(peer);
      const auto index =
          static_cast<std::size_t>(rank * shape_.tokens_per_rank + row_of(token, next_row[at]++));
      const std::byte* from = ranks_[at].expert_rows.data() + index * row;
      std::vector<float> values(elements);
      for (std::size_t i = 0; i < elements; ++i) {
        values[i] = read_float(from + i * size, shape_.format);
        if (shape_.fp8_wire && !wire && !protocol::is_finite(values[i])) values[i] = NAN;
      }
      if (wire) wires.emplace_back(values);
      rows.push_back(std::move(values));
    }
    std::vector<float> sums(elements);
    for (std::size_t i = 0; i < elements; ++i)
      sums[i] = wire ? wire_sum_of(wires, i) : sum_of(rows, i);
    const std::byte* got = output.data() + static_cast<std::size_t>(token) *
                                               static_cast<std::size_t>(own.output_stride);
    if (shape_.output == OutputFormat::kPlain) {
      for (std::size_t i = 0; i < elements; ++i) {
        const bool same =
            shape_.output_dtype == kBFloat16  ? same_plain<protocol::Bf16>(got + 2 * i, sums[i])
            : shape_.output_dtype == kFloat16 ? same_plain<protocol::Fp16>(got + 2 * i, sums[i])
                                              : same_plain<protocol::Fp32>(got + 4 * i, sums[i]);
        if (!same) {
          fail("rank ", rank, ": element ", i, " of token ", token, " (", rows.size(),
               " rows) must be ", sums[i], wire ? " over FP8" : "", ", dtype ",
               dtype_name(shape_.output_dtype));
        }
      }
      continue;
    }
    std::vector<std::uint8_t> values(elements + 1), want_scales;
    const std::size_t bytes = static_cast<std::size_t>(own.output_stride);
    if (shape_.output == OutputFormat::kMxfp8) {
      quantise<protocol::Mxfp8>(sums, own.scalar_scale, values, want_scales);
    } else if (shape_.output == OutputFormat::kMxfp4) {
      quantise<protocol::Mxfp4>(sums, own.scalar_scale, values, want_scales);
    } else {
      quantise<protocol::Nvfp4>(sums, own.scalar_scale, values, want_scales);
    }
    if (std::memcmp(got, values.data(), bytes) != 0) {
      fail("rank ", rank, ": codes of token ", token, " differ in format ",
           static_cast<int>(shape_.output));
    }
    for (std::int64_t col = 0; col < cols; ++col) {
      const auto at =
          static_cast<std::size_t>(protocol::scale_offset(shape_.sf_layout, token, col, cols));
      if (scales[at] != want_scales[static_cast<std::size_t>(col)]) {
        fail("rank ", rank, ": scale ", col, " of token ", token, " differs");
      }
    }
  }
  if (own.scale_bytes == 0 || shape_.sf_layout == SfLayout::kLinear) return;
  const std::int64_t padded_cols = protocol::scale_padded_cols(shape_.sf_layout, cols);
  const std::int64_t padded_rows = protocol::scale_padded_rows(shape_.sf_layout, own.num_tokens);
  for (std::int64_t r = 0; r < padded_rows; ++r) {
    for (std::int64_t c = r < own.num_tokens ? cols : 0; c < padded_cols; ++c) {
      if (scales[static_cast<std::size_t>(protocol::scale_offset(shape_.sf_layout, r, c, cols))] !=
          0) {
        fail("rank ", rank, ": padding of the scales at ", r, ", ", c, " is not zero");
      }
    }
  }
}

StepShape random_shape(Random& random, int num_ranks, int max_tokens, int eplb_experts,
                       std::int64_t max_dispatch_row, std::int64_t max_combine_row) {
  StepShape shape;
  shape.tokens_per_rank = pick(random, 0, 2) == 0 ? max_tokens : pick(random, 1, max_tokens);
  shape.top_k = pick(random, 0, 3) == 0 ? pick(random, 1, kMaxTopK) : pick(random, 1, 9);
  shape.num_experts = pick(random, 0, 1) == 0 ? pick(random, 1, 40) : 64;
  shape.invalid_expert_id = pick(random, 0, 1) == 0 ? -1 : shape.num_experts + 7;
  shape.wide_ids = pick(random, 0, 1) == 0;
  shape.ids_converted = pick(random, 0, 3) != 0;
  shape.weight_bytes = pick(random, 0, 2) == 0 ? 0 : 4 * shape.top_k;
  const int num_extras = pick(random, 0, 2);
  for (int i = 0; i < num_extras; ++i)
    shape.extra_bytes.push_back(pick(random, 1, 70));
  const std::int64_t room = max_dispatch_row - (shape.dispatch_row_bytes() - shape.hidden_bytes);
  constexpr int kWidths[] = {1, 2, 4, 8, 16, 16, 16};
  const int width = kWidths[pick(random, 0, 6)];
  shape.hidden_bytes = std::max(1, pick(random, 1, static_cast<int>(room)) / width * width);
  shape.stats = eplb_experts > 0 && pick(random, 0, 1) == 0;
  shape.active = RankMask::first(num_ranks);
  if (num_ranks > 1 && pick(random, 0, 3) == 0) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (pick(random, 0, 3) == 0) shape.active.reset(rank);
    }
    if (shape.active.empty()) shape.active.set(pick(random, 0, num_ranks - 1));
  }
  shape.mask_in_memory = pick(random, 0, 1) == 0;

  constexpr std::int32_t kFormats[] = {protocol::kCombineBf16, protocol::kCombineBf16,
                                       protocol::kCombineFp16, protocol::kCombineFp32};
  shape.format = kFormats[pick(random, 0, 3)];
  const int size = shape.format == protocol::kCombineFp32 ? 4 : 2;
  const int most = static_cast<int>(max_combine_row) / size;
  shape.elements = pick(random, 1, most);
  if (pick(random, 0, 1) == 0) shape.elements = std::max(16, shape.elements / 16 * 16);
  if (shape.elements > most) shape.elements = most;
  shape.fp8_wire = pick(random, 0, 2) == 0;
  // Experts may write over what they read.
  if (pick(random, 0, 2) == 0 && shape.combine_row_bytes() <= room) {
    shape.hidden_bytes = static_cast<int>(shape.combine_row_bytes());
  }
  constexpr OutputFormat kOutputs[] = {OutputFormat::kPlain, OutputFormat::kPlain,
                                       OutputFormat::kPlain, OutputFormat::kMxfp8,
                                       OutputFormat::kMxfp4, OutputFormat::kNvfp4};
  shape.output = kOutputs[pick(random, 0, 5)];
  constexpr DType kDtypes[] = {kBFloat16, kFloat16, kFloat32};
  shape.output_dtype = kDtypes[pick(random, 0, 2)];
  shape.sf_layout = static_cast<SfLayout>(pick(random, 0, 2));
  return shape;
}

StepShape random_lamport_shape(Random& random, const protocol::WorkspaceLayout& layout,
                               std::int64_t max_dispatch_row, std::int64_t max_combine_row) {
  StepShape shape = random_shape(random, layout.num_ranks, layout.max_tokens, 0, max_dispatch_row,
                                 max_combine_row);
  shape.ids_converted = true;
  shape.format = protocol::kCombineBf16;
  shape.fp8_wire = false;
  shape.tokens_per_rank = std::min(shape.tokens_per_rank, layout.lamport.max_tokens);
  while (shape.extra_bytes.size() > 1)
    shape.extra_bytes.pop_back();  // scales at most
  shape.hidden_bytes = std::min(shape.hidden_bytes, static_cast<int>(layout.lamport.row_stride));
  shape.elements = std::min(shape.elements, static_cast<int>(layout.lamport.combine_stride / 2));
  shape.transport = Transport::kLamport;
  return shape;
}

}  // namespace moe_ep::testing
