// Every bit pattern of every format arrives: only the encoding of a NaN may change on the way, in
// NVFP4 the sign of a zero (FIELD.md, FR-108, PREC). Ids, weights and scales keep every bit.
#include <algorithm>
#include <cstring>

#include "conformance/backend_suite.hpp"
#include "support/reference.hpp"

namespace moe_ep::testing {
namespace {

using Bytes = std::vector<std::byte>;

// What one rank sends to everybody: the same tensors on every rank.
struct Patterns {
  QuantFormat format;
  DType dtype;
  std::int64_t hidden;  // H
  std::int64_t tokens;
  Bytes rows;
  DType scale_dtype = kUInt8;
  Bytes scales = {};
};

void append(Bytes& bytes, std::uint32_t bits, int size) {
  for (int at = 0; at < size; ++at)
    bytes.push_back(static_cast<std::byte>(bits >> (8 * at)));
}

// Words of special meaning somewhere: sentinels, NaNs, infinities, zeros, denormals.
constexpr std::uint32_t kWords[] = {0xffffffffu, 0x7fff7fffu, 0x88888888u, 0x88888880u,
                                    0x7f7f7f7fu, 0u,          0x80000000u, 0x7f800000u,
                                    0xff800000u, 0x7fc00000u, 0xffc00001u, 0x7f800001u,
                                    1u,          0x80000001u, 0x007fffffu, 0xfffffffeu};

// All 65,536 patterns of 16 bits, each beside itself and beside another one.
Patterns bf16_patterns() {
  Patterns patterns{QuantFormat::kBF16, kBFloat16, 8192, 16, {}};
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    append(patterns.rows, bits, 2);
    append(patterns.rows, bits % 2 == 0 ? bits : 0xffffu, 2);
  }
  return patterns;
}

// All bytes, four alike and in a row; all words above.
Bytes byte_rows(std::size_t size) {
  Bytes rows;
  for (std::uint32_t byte = 0; byte < 256; ++byte)
    append(rows, byte * 0x01010101u, 4);
  for (std::uint32_t byte = 0; byte < 256; ++byte)
    append(rows, byte, 1);
  for (const std::uint32_t word : kWords)
    append(rows, word, 4);
  while (rows.size() < size)
    append(rows, 0x88ff7f00u, 4);
  rows.resize(size);
  return rows;
}

Bytes scale_words(std::size_t size) {
  Bytes scales;
  for (std::size_t word = 0; scales.size() < size; ++word)
    append(scales, kWords[word % std::size(kWords)], 4);
  return scales;
}

std::vector<Patterns> all_patterns() {
  std::vector<Patterns> all{bf16_patterns()};
  // 12 scales a row, so that every word is a scale somewhere.
  all.push_back({QuantFormat::kDeepSeekFp8, kFloat8E4M3FN, 1536, 4, byte_rows(4 * 1536), kFloat32,
                 scale_words(std::size_t{4} * 12 * 4)});
  all.push_back({QuantFormat::kMXFP8, kFloat8E4M3FN, 2048, 4, byte_rows(4 * 2048), kUInt8,
                 byte_rows(std::size_t{4} * 64)});
  all.back().scales = Bytes(256);
  for (std::size_t byte = 0; byte < 256; ++byte)
    all.back().scales[255 - byte] = static_cast<std::byte>(byte);
  all.push_back({QuantFormat::kNVFP4, kUInt8, 4096, 2, byte_rows(2 * 2048), kFloat8E4M3FN,
                 byte_rows(std::size_t{2} * 256)});
  return all;
}

bool same_number(const Patterns& patterns, const std::byte* sent, const std::byte* got,
                 std::size_t at) {
  if (patterns.format == QuantFormat::kBF16) {
    const std::size_t element = at / 2 * 2;
    const double want = reference::decode(kBFloat16, sent + element);
    return std::isnan(want) && std::isnan(reference::decode(kBFloat16, got + element));
  }
  const auto want = std::to_integer<int>(sent[at]);
  const auto have = std::to_integer<int>(got[at]);
  if (patterns.format != QuantFormat::kNVFP4) return (want & 0x7f) == 0x7f && (have & 0x7f) == 0x7f;
  for (const int shift : {0, 4}) {
    const int want_nibble = want >> shift & 15;
    const int got_nibble = have >> shift & 15;
    if (want_nibble != got_nibble && ((want_nibble | got_nibble) & 7) != 0) return false;
  }
  return true;
}

void check_patterns(const SuiteBackend& backend, MoEEpCommunication& comm,
                    const Patterns& patterns) {
  const int num_ranks = comm.bootstrap().world_size;
  const std::int64_t n = patterns.tokens;
  const auto width = static_cast<std::int64_t>(patterns.rows.size()) / n;
  const auto tensor = [&](DType dtype, const Bytes& bytes) {
    Tensor made(backend, dtype, n, static_cast<std::int64_t>(bytes.size()) / n / itemsize(dtype));
    for (std::int64_t row = 0; row < n; ++row) {
      const auto* first = bytes.data() + row * made.row_bytes();
      made.set_row(row, Bytes(first, first + made.row_bytes()));
    }
    return made;
  };
  // Every token goes to every rank; weights are the words above.
  const std::int64_t top_k = comm.params().top_k;
  Bytes ids;
  for (std::int64_t pick = 0; pick < n * top_k; ++pick)
    append(ids, static_cast<std::uint32_t>(pick % num_ranks), 4);
  const Bytes weight_bytes = scale_words(static_cast<std::size_t>(n * top_k * 4));
  const Tensor hidden = tensor(patterns.dtype, patterns.rows);
  const Tensor weights = tensor(kFloat32, weight_bytes);
  const Tensor id_tensor = tensor(kInt32, ids);
  std::optional<Tensor> scales;
  DispatchInputs inputs;
  inputs.hidden_states = hidden.view();
  inputs.topk_ids = id_tensor.view();
  inputs.topk_weights = weights.view();
  if (!patterns.scales.empty()) {
    scales.emplace(tensor(patterns.scale_dtype, patterns.scales));
    inputs.hidden_states_scale = scales->view();
  }
  const MoEEpDispatchResult got = comm.dispatch(inputs);
  check(comm.lamport_max_tokens() < n || comm.last_transport() == Transport::kLamport,
        "a small step did not take Lamport");
  for (int src = 0; src < num_ranks; ++src) {
    for (std::int64_t token = 0; token < n; ++token) {
      const std::int64_t row = src * n + token;
      const Bytes values = row_of(backend, got.hidden_states, row);
      const std::byte* sent = patterns.rows.data() + token * width;
      for (std::size_t at = 0; at < values.size(); ++at) {
        check(values[at] == sent[at] || same_number(patterns, sent, values.data(), at),
              std::string(quant_format_name(patterns.format)) + ": byte " + std::to_string(at) +
                  " of token " + std::to_string(token) + " differs");
      }
      const auto equal = [&](const TensorView& view, const Bytes& all, const char* name) {
        const Bytes bytes = row_of(backend, view, row);
        const auto first = static_cast<std::size_t>(token) * bytes.size();
        check(std::equal(bytes.begin(), bytes.end(),
                         all.begin() + static_cast<std::ptrdiff_t>(first)),
              std::string(name) + " differ");
      };
      equal(got.topk_weights.value(), weight_bytes, "weights");
      equal(got.topk_ids, ids, "ids");
      if (scales) equal(got.hidden_states_scale.value(), patterns.scales, "scales");
    }
  }
  Tensor output(backend, kBFloat16, n, patterns.hidden);
  comm.combine(comm.get_combine_input_buffer(kBFloat16), output.view());
}

TEST_P(BackendSuite, EveryBitPatternArrivesAsItsNumber) {
  for (const Patterns& patterns : all_patterns()) {
    MoEEpCommParams params = {.num_experts = 2,
                              .top_k = 2,
                              .max_tokens_per_rank = patterns.tokens,
                              .hidden_size = patterns.hidden,
                              .dispatch_format = patterns.format};
    run_instances(2, params, {}, [&](MoEEpCommunication& comm, int) {
      for (int step = 0; step < 3; ++step)  // both banks, and one of them armed again
        check_patterns(backend(), comm, patterns);
    });
  }
}

// Answers of every BF16 pattern, two contributions an element: the sums are those of the reference.
TEST_P(BackendSuite, EveryBitPatternOfAnAnswerIsSummed) {
  constexpr std::int64_t kHidden = 4096;
  constexpr std::int64_t kTokens = 16;
  MoEEpCommParams params = {
      .num_experts = 2, .top_k = 2, .max_tokens_per_rank = kTokens, .hidden_size = kHidden};
  run_instances(2, params, {}, [&](MoEEpCommunication& comm, int rank) {
    for (int step = 0; step < 3; ++step) {
      Tensor hidden(backend(), kBFloat16, kTokens, kHidden);
      hidden.fill(std::byte{0});
      Tensor ids(backend(), kInt32, kTokens, 2);
      // Even tokens visit both ranks, odd ones the other rank only.
      for (std::int64_t token = 0; token < kTokens; ++token) {
        Bytes row;
        append(row, static_cast<std::uint32_t>(token % 2 == 0 ? rank : 1 - rank), 4);
        append(row, static_cast<std::uint32_t>(1 - rank), 4);
        ids.set_row(token, row);
      }
      DispatchInputs inputs;
      inputs.hidden_states = hidden.view();
      inputs.topk_ids = ids.view();
      const MoEEpDispatchResult got = comm.dispatch(inputs);
      const std::int64_t rows = 2 * kTokens;
      Tensor answers(backend(), kBFloat16, rows, kHidden);
      const auto answer = [&](int from, std::int64_t token, std::int64_t element) {
        const auto bits = static_cast<std::uint32_t>(token * kHidden + element);
        return (from == 0 ? bits : bits * 40503u + 1 + static_cast<std::uint32_t>(step)) & 0xffffu;
      };
      const bool by_token = comm.last_transport() == Transport::kLamport;
      for (int src = 0; src < 2; ++src) {
        std::int64_t next = 0;
        for (std::int64_t token = 0; token < kTokens; ++token) {
          if (src == rank && token % 2 != 0) continue;
          Bytes row;
          for (std::int64_t element = 0; element < kHidden; ++element)
            append(row, answer(rank, token, element), 2);
          answers.set_row(src * kTokens + (by_token ? token : next++), row);
        }
      }
      Tensor output(backend(), kBFloat16, kTokens, kHidden);
      comm.combine(answers.view(), output.view());
      for (std::int64_t token = 0; token < kTokens; ++token) {
        const Bytes row = output.row(token);
        for (std::int64_t element = 0; element < kHidden; ++element) {
          std::vector<std::vector<double>> parts;
          for (int from = 0; from < 2; ++from) {
            if (token % 2 != 0 && from == rank) continue;
            Bytes bits;
            append(bits, answer(from, token, element), 2);
            parts.push_back({reference::decode(kBFloat16, bits.data())});
          }
          const double want = reference::rounded(kBFloat16, reference::sum(parts, 0));
          check(reference::is_value(kBFloat16, row.data() + 2 * element, want),
                "a sum differs in token " + std::to_string(token));
        }
      }
    }
  });
}

}  // namespace
}  // namespace moe_ep::testing
