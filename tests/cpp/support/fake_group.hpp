// R ranks in one thread: their slices in one block of memory, steps described from plain vectors,
// and phases that run a rank's peers while it waits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "protocol/one_sided.hpp"
#include "protocol/transport/counted.hpp"
#include "protocol/transport/fence.hpp"
#include "protocol/transport/lamport_combine.hpp"
#include "support/fake_memory.hpp"

namespace moe_ep::testing {

// What one rank brings to a step. A row's words tell where it came from.
struct FakeTokens {
  std::vector<std::vector<std::int64_t>> ids;    // of each token
  std::vector<std::vector<std::uint32_t>> rows;  // of each token, equal lengths

  // Tokens whose words are {salt, rank, token, ...}.
  static FakeTokens make(std::uint32_t salt, int rank, std::vector<std::vector<std::int64_t>> ids,
                         int num_words) {
    FakeTokens tokens;
    tokens.ids = std::move(ids);
    for (std::size_t token = 0; token < tokens.ids.size(); ++token) {
      std::vector<std::uint32_t> words;
      for (int word = 0; word < num_words; ++word) {
        words.push_back((salt * 0x9e3779b9u) ^ static_cast<std::uint32_t>(rank << 20) ^
                        static_cast<std::uint32_t>(token << 8) ^ static_cast<std::uint32_t>(word));
      }
      tokens.rows.push_back(std::move(words));
    }
    return tokens;
  }
};

struct FakeStep {
  std::int32_t tokens_per_rank = 0;
  std::int32_t num_experts = 0;
  std::int32_t top_k = 0;
  std::int32_t num_words = 1;  // of a payload row
  RankMask active;
  std::int32_t invalid_expert_id = -1;
  std::uint64_t timeout_ns = 1'000'000;
  Transport transport = Transport::kFence;
};

// A combine of 32-bit words that wrap: exact in any order.
struct FakeRows {
  const protocol::CombineParams& params;
  std::vector<std::vector<std::uint32_t>>& results;
  std::map<std::int32_t, std::vector<std::byte>> staged = {};

  void place(std::byte* to, const std::byte* from) {
    std::memmove(to, from, static_cast<std::size_t>(params.row_bytes));
  }
  std::byte* staging(std::int32_t index) {
    auto& row = staged[index];
    row.resize(static_cast<std::size_t>(params.row_bytes));
    return row.data();
  }
  void sum(std::int32_t token, const std::byte* const* rows, std::int32_t num_rows) {
    auto& result = results[static_cast<std::size_t>(token)];
    result.assign(static_cast<std::size_t>(params.elements), 0);
    for (std::int32_t row = 0; row < num_rows; ++row) {
      for (std::size_t word = 0; word < result.size(); ++word) {
        std::uint32_t value;
        std::memcpy(&value, rows[row] + 4 * word, sizeof value);
        result[word] += value;
      }
    }
  }
};

// Regions of all transports, for Lamport steps of up to `max_tokens` tokens of `num_words` words.
inline protocol::TransportRegions all_regions(std::int32_t max_tokens, std::int32_t top_k,
                                                  std::int32_t num_words) {
  protocol::TransportRegions regions;
  regions.lamport = {max_tokens, top_k, 4ll * num_words, 0, 4ll * num_words,
                     protocol::DataWords::kBf16};
  regions.counted_row_bytes = 4ll * num_words;
  return regions;
}

class FakeGroup {
 public:
  FakeGroup(int num_ranks, std::int32_t max_tokens, std::int64_t dispatch_row_bytes,
            std::int64_t combine_row_bytes, std::int32_t eplb_experts = 0,
            protocol::Epoch epoch = 0, const protocol::TransportRegions& regions = {})
      : layout_(protocol::WorkspaceLayout::make(
            num_ranks, max_tokens, eplb_experts,
            protocol::WorkspaceLayout::required_bytes(num_ranks, max_tokens, eplb_experts,
                                                      dispatch_row_bytes, combine_row_bytes,
                                                      regions),
            regions)),
        bytes_(static_cast<std::size_t>(num_ranks * layout_.slice_bytes) + 128, std::byte{0x7f}) {
    for (int rank = 0; rank < num_ranks; ++rank)
      protocol::reset_slice(workspace(rank), epoch);
  }

  int num_ranks() const { return layout_.num_ranks; }
  const protocol::WorkspaceLayout& layout() const { return layout_; }
  std::vector<std::byte>& bytes() { return bytes_; }

  protocol::Workspace workspace(int rank) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    std::byte* aligned = bytes_.data() + (128 - address % 128) % 128;
    return {aligned, layout_.slice_bytes, layout_, rank};
  }

  // Ids travel as payload 1; `tokens` must outlive the step.
  protocol::DispatchParams dispatch_params(int rank, const FakeStep& step,
                                           const FakeTokens& tokens) {
    protocol::DispatchParams params;
    params.workspace = workspace(rank);
    params.active = step.active;
    params.num_tokens = static_cast<std::int32_t>(tokens.ids.size());
    params.tokens_per_rank = step.tokens_per_rank;
    params.ownership = protocol::Ownership::make(step.num_experts, num_ranks());
    params.top_k = step.top_k;
    params.wide_ids = true;
    params.ids_payload = 1;
    params.invalid_expert_id = step.invalid_expert_id;
    params.num_payloads = 2;
    params.timeout_ns = step.timeout_ns;
    auto& fields = params.signature.fields;
    fields[protocol::kTokensPerRank] = step.tokens_per_rank;
    fields[protocol::kNumExperts] = step.num_experts;
    fields[protocol::kTopK] = step.top_k;
    fields[protocol::kTransport] = static_cast<std::int32_t>(step.transport);
    fields[protocol::kNumPayloads] = 2;
    fields[protocol::kFirstRowBytes] = 4 * step.num_words;
    fields[protocol::kFirstRowBytes + 1] = 4 * step.top_k;
    params.placement = protocol::PayloadPlacement::make(layout_, step.tokens_per_rank,
                                                        fields + protocol::kFirstRowBytes, 2);
    auto& [ids, rows] = sources_[rank];
    ids.clear();
    rows.clear();
    for (const auto& token : tokens.ids)
      ids.insert(ids.end(), token.begin(), token.end());
    for (const auto& row : tokens.rows)
      rows.insert(rows.end(), row.begin(), row.end());
    params.topk_ids = reinterpret_cast<const std::byte*>(ids.data());
    params.topk_ids_stride = 8ll * step.top_k;
    params.payloads[0] = {reinterpret_cast<const std::byte*>(rows.data()), 4ll * step.num_words};
    return params;
  }

  protocol::CombineParams combine_params(int rank, const FakeStep& step, std::int32_t num_tokens) {
    protocol::CombineParams params;
    params.workspace = workspace(rank);
    params.active = step.active;
    params.num_tokens = num_tokens;
    params.tokens_per_rank = step.tokens_per_rank;
    params.elements = step.num_words;
    params.row_bytes = 4ll * step.num_words;
    params.timeout_ns = step.timeout_ns;
    params.transport = step.transport;
    return params;
  }

  // Word `word` of row `row` of block `src` that `rank` received as payload `payload`.
  static std::uint32_t received(const protocol::DispatchParams& params, int payload, int src,
                                int row, int word) {
    std::uint32_t value;
    std::memcpy(&value, params.row(params.workspace.rank, payload, src, row) + 4 * word,
                sizeof value);
    return value;
  }

  // Runs `phase(rank, memory)` once for each of `ranks`: the first runs until it has to wait, then
  // the next, and so on; the last finds everything there, and they end in reverse order.
  static void run(const std::vector<int>& ranks,
                  const std::function<void(int rank, FakeMemory& memory)>& phase) {
    std::size_t next = 0;
    const std::function<void()> start_next = [&] {
      if (next == ranks.size()) return;
      const int rank = ranks[next++];
      FakeMemory memory;
      memory.on_pause = [&](std::uint32_t) { start_next(); };
      phase(rank, memory);
    };
    while (next < ranks.size())
      start_next();
  }

 private:
  protocol::WorkspaceLayout layout_;
  std::vector<std::byte> bytes_;
  std::map<int, std::pair<std::vector<std::int64_t>, std::vector<std::uint32_t>>> sources_;
};

}  // namespace moe_ep::testing
