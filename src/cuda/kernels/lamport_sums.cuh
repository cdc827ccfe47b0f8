// The answers to this rank's tokens: polled, added in ascending rank order, armed again. The own
// answer is read where the experts left it.
#pragma once

#include "cuda/device/store.cuh"
#include "cuda/kernels/lamport_args.cuh"
#include "protocol/reduce.hpp"

namespace moe_ep::cuda {

// Rows that a lane holds at once: answers to peers, and answers to add up.
template <int Side>
inline constexpr int kLamportBatch = Side + 1;

// Ranks of an own token's hop list from number `first` on, all loaded at once.
template <int Batch>
__device__ __forceinline__ void load_hops(std::int32_t (&ranks)[Batch],
                                          const protocol::Workspace& workspace, std::int32_t token,
                                          std::int32_t first) {
  const protocol::Hop* hops = workspace.hops(token);
#pragma unroll
  for (int b = 0; b < Batch; ++b)
    ranks[b] = first + b < workspace.layout.hops_per_token() ? hops[first + b].rank : -1;
}

// One lane's sums of a unit.
template <int Bytes, int Vectors>
struct LamportSums {
  static constexpr int kElements = Bytes / 2;
  float sum[Vectors][kElements];

  __device__ __forceinline__ void start(bool empty) {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
#pragma unroll
      for (int i = 0; i < kElements; ++i)
        sum[v][i] = empty ? protocol::kEmptySum : protocol::kSumIdentity;
    }
  }
  __device__ __forceinline__ void add(const LaneWords<Bytes> (&row)[Vectors]) {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        sum[v][i] =
            protocol::sum_next(sum[v][i], element_of<DeviceBf16, kElements>(row[v].group(), i));
      }
    }
  }
  template <bool kQuantised>
  __device__ __forceinline__ void store(const LamportCombineArgs& args,
                                        const LamportUnit& unit) const {
    const std::int32_t elements = args.params.elements;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const auto first = static_cast<std::int32_t>(unit.at<Bytes>(v) / 2);
      // Rows of an odd number of elements end within a word; they are not quantised.
      if (!kQuantised && Bytes == 4 && first + 1 == elements) {
        const float last[1] = {sum[v][0]};
        store_sums<false>(args.output, unit.token, first, true, elements, last, false);
      } else {
        store_sums<kQuantised>(args.output, unit.token, first, first < elements, elements, sum[v],
                               args.wide_output);
      }
    }
  }
};

// Sums the unit's piece of this rank's token. False, with the failure recorded, if an answer did
// not come. The whole warp.
template <int Bytes, int Vectors, int Side, bool kQuantised>
__device__ __forceinline__ bool sum_answers(const LamportCombineArgs& args, const LamportUnit& unit,
                                            Epoch epoch) {
  const std::uint32_t row_bytes = args.shape.row_bytes;
  constexpr int kBatch = kLamportBatch<Side>;
  const protocol::Workspace& workspace = args.params.workspace;
  const protocol::LamportLayout& layout = workspace.layout.lamport;
  const std::int32_t me = workspace.rank;
  const std::uint32_t sentinel = protocol::sentinel_of(protocol::kCombineWords);
  const std::int64_t block = args.params.tokens_per_rank * args.stride;
  const std::int64_t landing_block = args.row_grid.block;
  std::byte* taken = workspace.own() + args.row_grid.at(0, unit.token) +
                     args.row_grid.bank_of(epoch) + unit.offset;
  const std::byte* own = args.rows + me * block + unit.token * args.stride + unit.offset;
  LamportSums<Bytes, Vectors> sums;
  bool more = true;
  for (std::int32_t first = 0; more && first < workspace.layout.hops_per_token(); first += kBatch) {
    std::int32_t rank[kBatch];
    load_hops(rank, workspace, unit.token, first);
    LaneWords<Bytes> rows[kBatch][Vectors];
    std::uint32_t pending = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      more = more && rank[b] >= 0 && rank[b] < layout.num_ranks;
      if (!more) {
        rank[b] = -1;
        continue;
      }
      if (rank[b] != me) {
        pending |= 1u << b;
        continue;
      }
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        const std::uint32_t at = unit.at<Bytes>(v);
        if (at < row_bytes) {
          rows[b][v].load_row(own + LamportUnit::apart<Bytes>(v), row_bytes - at, args.shape.width);
        }
      }
    }
    if (first == 0) sums.start(rank[0] < 0);
    const bool arrived = pending == 0 || wait_until(lamport_patience(args), [&] {
                           std::uint32_t missing = 0;
#pragma unroll
                           for (int b = 0; b < kBatch; ++b) {
                             if ((pending >> b & 1) == 0) continue;
                             const std::byte* from = taken + rank[b] * landing_block;
#pragma unroll
                             for (int v = 0; v < Vectors; ++v) {
                               if (unit.at<Bytes>(v) < row_bytes) {
                                 rows[b][v].poll(from + LamportUnit::apart<Bytes>(v));
                               }
                             }
                           }
#pragma unroll
                           for (int b = 0; b < kBatch; ++b) {
                             if ((pending >> b & 1) == 0) continue;
#pragma unroll
                             for (int v = 0; v < Vectors; ++v) {
                               if (unit.at<Bytes>(v) < row_bytes && !rows[b][v].arrived(sentinel)) {
                                 missing |= 1u << b;
                               }
                             }
                           }
                           pending &= missing;
                           return pending == 0;
                         });
    if (!arrived) {
      RankMask missing;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if ((pending >> b & 1) != 0) missing.set(rank[b]);
      }
      record_timeout(workspace.header(), args.record, Phase::kCombine, epoch, missing);
    }
    if (!__all_sync(~0u, arrived)) return false;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (rank[b] < 0) continue;
      sums.add(rows[b]);
      if (rank[b] == me) continue;
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        if (unit.at<Bytes>(v) < row_bytes) {
          LaneWords<Bytes>::arm(taken + rank[b] * landing_block + LamportUnit::apart<Bytes>(v),
                                sentinel);
        }
      }
    }
  }
  sums.template store<kQuantised>(args, unit);
  return true;
}

}  // namespace moe_ep::cuda
