// One random step on all ranks of a rig: inputs, launches, snapshots, and a naive check of every
// byte that the contract promises.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "cuda/kernels/combine.hpp"
#include "protocol/output.hpp"
#include "rig.hpp"

namespace moe_ep::testing {

using Random = std::mt19937;

// What all ranks share in a step.
struct StepShape {
  Transport transport = Transport::kFence;
  int tokens_per_rank = 4;  // T
  int top_k = 2;
  int num_experts = 8;
  int hidden_bytes = 32;         // of a row of payload 0
  bool wide_ids = false;         // int64
  bool ids_converted = true;     // payload 1 is made from topk_ids
  int weight_bytes = 0;          // of a row of the weights; 0: none
  std::vector<int> extra_bytes;  // rows of further payloads
  bool stats = false;
  std::int32_t invalid_expert_id = -1;
  RankMask active;
  bool mask_in_memory = false;
  std::vector<int> num_tokens;  // of each rank; empty: random
  int target = -1;              // the rank that owns all picks; -1: random
  // combine
  std::int32_t format = protocol::kCombineBf16;
  int elements = 16;
  bool fp8_wire = false;
  OutputFormat output = OutputFormat::kPlain;
  DType output_dtype = kBFloat16;
  SfLayout sf_layout = SfLayout::kLinear;
  std::uint64_t timeout_ns = 20'000'000'000ull;
  // Nothing is enqueued between the kernels, so that they may overlap; only sums are checked.
  bool chained = false;

  std::int64_t dispatch_row_bytes() const;
  std::int64_t combine_row_bytes() const;
  std::vector<int> row_bytes() const;  // of all payloads
};

struct StepRank {
  int num_tokens = 0;
  enum class Experts { kCombineRegion, kElsewhere, kDispatchedRows };
  Experts experts_write = Experts::kElsewhere;
  std::vector<std::int64_t> ids;             // [n, K] as they are
  std::vector<std::vector<std::byte>> rows;  // [payload] packed rows; ids as they travel
  std::vector<std::int32_t> stats;
  std::vector<std::byte> expert_rows;  // [R*T, row] packed, rubbish where no token is
  std::int64_t output_stride = 0;
  std::int64_t scale_bytes = 0;
  float scalar_scale = 1.0f;
  cuda::CombineTuning tuning;

  protocol::DispatchParams dispatch;
  protocol::CombineParams combine;
  CombineOutput output;
  // Device memory; snapshots are taken in stream order.
  DeviceBuffer ids_memory, stats_memory, expert_memory, output_memory, scale_memory;
  std::vector<DeviceBuffer> payload_memory, payload_snapshot;
  DeviceBuffer counts_snapshot, stats_snapshot;
};

class Step {
 public:
  Step(Rig& rig, const StepShape& shape, Random& random);

  // New numbers of tokens, routing and rows in the same memory. No step may be running.
  void refill(Random& random);
  std::vector<StepRank>& ranks() { return ranks_; }
  const StepShape& shape() const { return shape_; }

  void dispatch(int rank);  // enqueues, with a snapshot of what arrived
  void combine(int rank);   // enqueues
  void run();               // dispatch on all ranks, then combine on all
  // After synchronisation. Throws std::runtime_error with what differs.
  void check();

 private:
  // Where the `nth` of the tokens that go from one rank to another lies in its block.
  int row_of(int token, int nth) const {
    return shape_.transport == Transport::kLamport ? token : nth;
  }
  void allocate(int rank, Random& random);
  void fill(int rank, Random& random);
  // Tokens of `src` that visit `dst`, ascending.
  std::vector<int> visitors(int src, int dst) const;
  bool visits(int src, int token, int dst) const;
  void check_arrivals(int rank);
  void check_sums(int rank);

  Rig& rig_;
  StepShape shape_;
  std::vector<StepRank> ranks_;
};

// A random shape whose rows fit the rig's layout.
StepShape random_shape(Random& random, int num_ranks, int max_tokens, int eplb_experts,
                       std::int64_t max_dispatch_row, std::int64_t max_combine_row);

// The same, made into a step that `layout` can take as a Lamport step, if it has any.
StepShape random_lamport_shape(Random& random, const protocol::WorkspaceLayout& layout,
                               std::int64_t max_dispatch_row, std::int64_t max_combine_row);

inline int pick(Random& random, int from, int to) {
  return std::uniform_int_distribution<int>(from, to)(random);
}

}  // namespace moe_ep::testing
