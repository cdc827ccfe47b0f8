// A caller of the stateless family: a workspace in plain memory, R threads, steps that are checked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <moe_ep/a2a.hpp>

#include "support/reference.hpp"
#include "support/spawn_ranks.hpp"
#include "support/step_runner.hpp"

namespace moe_ep::testing {

// Bytes at an address that is a multiple of 64.
class Bytes {
 public:
  explicit Bytes(std::size_t bytes, std::byte fill = std::byte{0})
      : memory_(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 64) / 64 * 64)), std::free),
        bytes_(bytes) {
    std::memset(memory_.get(), static_cast<int>(fill), bytes);
  }
  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }
  TensorView view(DType dtype, std::initializer_list<std::int64_t> shape) const {
    return TensorView(memory_.get(), dtype, shape);
  }

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_;
};

struct A2aWorld {
  int num_ranks;
  std::int64_t max_num_tokens;
  std::int64_t eplb_experts;
  std::int64_t slice_bytes;
  Bytes memory;

  // Room for these rows of all payloads together, ids included.
  A2aWorld(int num_ranks_, std::int64_t max_num_tokens_, std::int64_t dispatch_row_bytes,
           std::int64_t combine_row_bytes, std::int64_t eplb_experts_ = 0,
           std::int64_t spare_bytes = 0)
      : num_ranks(num_ranks_),
        max_num_tokens(max_num_tokens_),
        eplb_experts(eplb_experts_),
        slice_bytes(moe_a2a_get_workspace_size_per_rank(num_ranks_, max_num_tokens_,
                                                        dispatch_row_bytes, combine_row_bytes,
                                                        eplb_experts_) +
                    spare_bytes),
        memory(static_cast<std::size_t>(num_ranks_ * slice_bytes), std::byte{0x7f}) {}

  TensorView workspace() const { return memory.view(kUInt8, {num_ranks, slice_bytes}); }
  A2aMetainfo initialize(int rank) const {
    return moe_a2a_initialize(workspace(), rank, num_ranks, max_num_tokens, eplb_experts);
  }
  // Arms every rank and runs `body(rank, its metainfo)` on a thread of each.
  void run(const std::function<void(int rank, const A2aMetainfo& metainfo)>& body) const {
    EXPECT_TRUE(all_ok(spawn_ranks(RankKind::kThreads, num_ranks,
                                   [&](int rank, const std::shared_ptr<CommBackend>& comm) {
                                     const A2aMetainfo metainfo = initialize(rank);
                                     comm->barrier();
                                     body(rank, metainfo);
                                   })));
  }
};

// One rank's part of a GroupStep through the stateless family. Payload 0 is hidden rows of
// `hidden_bytes`, payload 1 the ids; `extra` further rows of odd sizes follow.
class A2aStep {
 public:
  A2aStep(const A2aWorld& world, int rank, const A2aMetainfo& metainfo, const GroupStep& step,
          std::int64_t hidden_bytes, int num_extra = 0, bool wide_ids = false)
      : world_(world),
        rank_(rank),
        step_(step),
        num_tokens_(step.num_tokens[static_cast<std::size_t>(rank)]),
        routing_(static_cast<std::size_t>(num_tokens_ * step.top_k * 8)),
        ids_(static_cast<std::size_t>(num_tokens_ * step.top_k * 4)) {
    for (std::int64_t at = 0; at < num_tokens_ * step.top_k; ++at) {
      const std::int64_t id =
          step.ids[static_cast<std::size_t>(rank)][static_cast<std::size_t>(at)];
      const auto narrow = static_cast<std::int32_t>(id);
      std::memcpy(ids_.data() + 4 * at, &narrow, 4);
      if (wide_ids) std::memcpy(routing_.data() + 8 * at, &id, 8);
      if (!wide_ids) std::memcpy(routing_.data() + 4 * at, &narrow, 4);
    }
    args.token_selected_experts =
        routing_.view(wide_ids ? kInt64 : kInt32, {num_tokens_, step.top_k});
    add_rows(kHiddenPayload, hidden_bytes);
    args.input_payloads.push_back(ids_.view(kInt32, {num_tokens_, step.top_k}));
    for (int extra = 0; extra < num_extra; ++extra) {
      add_rows(kFirstExtraPayload + extra, 1 + 2 * extra);
    }
    args.workspace = world.workspace();
    args.metainfo = metainfo;
    args.runtime_max_tokens_per_rank = step.tokens_per_rank;
    args.ep_rank = rank;
    args.ep_size = world.num_ranks;
    args.top_k = step.top_k;
    args.num_experts = step.num_experts;
  }

  A2aDispatchArgs args;
  A2aDispatchResult result;

  void dispatch() {
    result = moe_a2a_dispatch(args);
    moe_a2a_sanitize_expert_ids(result.output_payloads[1], args.workspace, args.metainfo, rank_,
                                step_.invalid_expert_id, args.backend, args.stream);
  }

  // Everything that arrived, and the sanitised ids of all rows.
  void check_received() const {
    const auto rows_of = [&](std::size_t payload) {
      const TensorView& view = result.output_payloads[payload];
      check(view.ndim == 3 && view.size(0) == world_.num_ranks &&
                view.size(1) == step_.tokens_per_rank && view.is_contiguous(),
            "payload came as " + describe(view));
      return static_cast<const std::byte*>(view.data);
    };
    for (int src = 0; src < world_.num_ranks; ++src) {
      const auto tokens = reference::arrivals(step_, src, rank_);
      for (std::size_t payload = 0; payload < args.input_payloads.size(); ++payload) {
        if (payload == 1) continue;
        const int kind =
            payload == 0 ? int{kHiddenPayload} : kFirstExtraPayload + static_cast<int>(payload) - 2;
        const std::int64_t bytes = args.input_payloads[payload].size(1);
        for (std::size_t row = 0; row < tokens.size(); ++row) {
          const auto expected = payload_row(step_, kind, src, tokens[row], bytes);
          const auto index = src * step_.tokens_per_rank + static_cast<std::int64_t>(row);
          check(
              std::memcmp(rows_of(payload) + index * bytes, expected.data(), expected.size()) == 0,
              "rank " + std::to_string(rank_) + ": payload " + std::to_string(payload) +
                  " of rank " + std::to_string(src) + " differs");
        }
      }
      const std::byte* ids = rows_of(1);
      for (std::int64_t row = 0; row < step_.tokens_per_rank; ++row) {
        for (std::int64_t k = 0; k < step_.top_k; ++k) {
          const auto index = (src * step_.tokens_per_rank + row) * step_.top_k + k;
          std::int32_t got;
          std::memcpy(&got, ids + 4 * index, 4);
          const bool empty = row >= static_cast<std::int64_t>(tokens.size());
          const std::int64_t want = empty ? step_.invalid_expert_id
                                          : static_cast<std::int32_t>(step_.id(
                                                src, tokens[static_cast<std::size_t>(row)], k));
          check(got == want, "rank " + std::to_string(rank_) + ": an id of rank " +
                                 std::to_string(src) + " must be " + std::to_string(want) +
                                 ", got " + std::to_string(got));
        }
      }
    }
  }

  // Args of the matching combine, with experts' answers in a tensor of this object; rows without a
  // token are NaN.
  A2aCombineArgs combine_args(bool in_workspace = false) {
    const std::int64_t row_bytes = step_.hidden * itemsize(step_.dtype);
    const std::int64_t rows = world_.num_ranks * step_.tokens_per_rank;
    A2aCombineArgs combine;
    answers_ = Bytes(static_cast<std::size_t>(rows * row_bytes), std::byte{0xff});
    combine.payload = answers_.view(step_.dtype, {rows, step_.hidden});
    if (in_workspace) {
      combine.payload = moe_a2a_wrap_payload_tensor_in_workspace(
          own_slice(), {world_.num_ranks, step_.tokens_per_rank}, result.combine_payload_offset,
          result.combine_payload_offset + rows * row_bytes, step_.dtype);
      std::memset(combine.payload.data, 0xff, static_cast<std::size_t>(rows * row_bytes));
    }
    for (int src = 0; src < world_.num_ranks; ++src) {
      const auto tokens = reference::arrivals(step_, src, rank_);
      for (std::size_t row = 0; row < tokens.size(); ++row) {
        const auto answer = expert_row(step_, rank_, src, tokens[row]);
        const auto index = src * step_.tokens_per_rank + static_cast<std::int64_t>(row);
        std::memcpy(static_cast<std::byte*>(combine.payload.data) + index * row_bytes,
                    answer.data(), answer.size());
      }
    }
    combine.local_num_tokens = num_tokens_;
    combine.workspace = args.workspace;
    combine.metainfo = args.metainfo;
    combine.runtime_max_tokens_per_rank = step_.tokens_per_rank;
    combine.ep_rank = rank_;
    combine.ep_size = world_.num_ranks;
    combine.top_k = step_.top_k;
    combine.combine_payload_offset = result.combine_payload_offset;
    combine.payload_in_workspace = in_workspace;
    combine.enable_rank_mask = args.enable_rank_mask;
    combine.active_rank_mask = args.active_rank_mask;
    combine.backend = args.backend;
    output_ = Bytes(static_cast<std::size_t>(num_tokens_ * row_bytes), std::byte{0x5a});
    combine.output = output_.view(step_.dtype, {num_tokens_, step_.hidden});
    return combine;
  }

  // The sum of every token, rounded to `dtype`, is what `output` holds.
  void check_combined(const TensorView& output) const {
    for (std::int64_t token = 0; token < num_tokens_; ++token) {
      const auto rows = reference::contributions(step_, rank_, token);
      for (std::int64_t element = 0; element < step_.hidden; ++element) {
        const double want = reference::rounded(
            output.dtype, reference::sum(rows, static_cast<std::size_t>(element)));
        const auto* at = static_cast<const std::byte*>(output.data) +
                         (token * step_.hidden + element) * itemsize(output.dtype);
        check(reference::is_value(output.dtype, at, want),
              "rank " + std::to_string(rank_) + ": element " + std::to_string(element) +
                  " of token " + std::to_string(token) + " must be " + std::to_string(want) +
                  ", got " + std::to_string(reference::decode(output.dtype, at)));
      }
    }
  }

  void run(bool in_workspace = false) {
    dispatch();
    check_received();
    const A2aCombineArgs combine = combine_args(in_workspace);
    moe_a2a_combine(combine);
    check_combined(combine.output);
  }

  TensorView own_slice() const {
    return TensorView(world_.memory.data() + rank_ * world_.slice_bytes, kUInt8,
                      {world_.slice_bytes});
  }

 private:
  void add_rows(int kind, std::int64_t bytes) {
    Bytes rows(static_cast<std::size_t>(num_tokens_ * bytes));
    for (std::int64_t token = 0; token < num_tokens_; ++token) {
      const auto row = payload_row(step_, kind, rank_, token, bytes);
      std::memcpy(rows.data() + token * bytes, row.data(), row.size());
    }
    args.input_payloads.push_back(rows.view(kUInt8, {num_tokens_, bytes}));
    rows_.push_back(rows);
  }

  const A2aWorld& world_;
  const int rank_;
  const GroupStep& step_;
  const std::int64_t num_tokens_;
  Bytes routing_;
  Bytes ids_;
  std::vector<Bytes> rows_;
  Bytes answers_{0};
  Bytes output_{0};
};

}  // namespace moe_ep::testing
