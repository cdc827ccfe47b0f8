// From a caller's tensors to the protocol's params: all validation of steps, before anything is
// sent.
#pragma once

#include <string>

#include <moe_ep/a2a.hpp>
#include <moe_ep/communication.hpp>

#include "backend/backend.hpp"
#include "core/options.hpp"
#include "protocol/step.hpp"

namespace moe_ep::detail {

// Checks that a payload is [n, *] on `device` with contiguous rows; returns its row's bytes.
std::int64_t check_payload(const std::string& operation, const std::string& name,
                           const TensorView& tensor, std::int64_t num_tokens, Device device);

// Refuses ids and statistics at an odd address, and on a GPU, where reading one is a fault that
// ends the context, any typed values. Rows that travel as bytes may lie anywhere.
void check_alignment(const std::string& operation, const std::string& name,
                     const TensorView& tensor);

// Checks that ids are int32 or int64 [n, top_k].
void check_ids(const std::string& operation, const std::string& name, const TensorView& ids,
               std::int64_t top_k, Device device);

// Checks int32 [num_experts] statistics against a workspace that has room for `num_experts`.
void check_eplb_stats(const std::string& operation, const TensorView& stats,
                      std::int64_t num_experts, Device device);

// Checks that `mask` names only ranks of the group and the own one.
void check_mask(const std::string& operation, const RankMask& mask, int rank, int num_ranks);

// A view of rows `leading...` of what `like` holds per token, at `data`.
TensorView like_rows(const TensorView& like, void* data,
                     std::initializer_list<std::int64_t> leading);

// Adds one payload to `params`: row bytes in the signature, source rows.
void add_payload(protocol::DispatchParams& params, const TensorView& tensor,
                 std::int64_t row_bytes);

// The class's dispatch: checks `inputs` and describes the step.
protocol::DispatchParams make_dispatch(const protocol::Workspace& workspace,
                                       const MoEEpCommParams& params, const Options& options,
                                       Device device, const RankMask& active,
                                       const DispatchInputs& inputs);

// What a finished step hands out.
MoEEpDispatchResult dispatch_result(const protocol::DispatchParams& step,
                                    const DispatchInputs& inputs);

// Checks a combine's rows [R*T, H] or [R, T, H]; returns the bytes between its rows.
std::int64_t check_expert_output(const std::string& operation, const TensorView& rows,
                                 std::int64_t num_ranks, std::int64_t tokens_per_rank,
                                 std::int64_t hidden, Device device);

// CombineFormat of a dtype; -1 if rows of it cannot be summed.
std::int32_t combine_format(DType dtype);

// Sets where a combine's rows come from: `expert_output` or, if it is the region itself, in place.
// Refuses a tensor that overlaps the region otherwise.
void set_expert_output(const std::string& operation, protocol::CombineParams& params,
                       const TensorView& expert_output, std::int64_t stride);

// Refuses an output that overlaps the combine region, which peers still read when it is written.
void check_output_apart(const std::string& operation, const protocol::CombineParams& params,
                        const TensorView& output);

// What of a class's dispatch messages may need later.
struct PayloadNames {
  bool weights = false;
  bool scale = false;
  std::vector<std::string> extras;

  void remember(const DispatchInputs& inputs);
  // Of all payloads, in the order of make_dispatch.
  std::vector<std::string> list() const;
};

}  // namespace moe_ep::detail
