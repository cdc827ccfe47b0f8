// Third part of a combine: one token's rows, awaited and added.
//
// A warp owns a unit: a range of one token's elements. It finds where the token's rows lie, waits
// for those that come part by part, and adds them in ascending rank order. Rows are taken kBatch at
// a time, so that as many loads are on their way; the additions of an element stay in order.
#pragma once

#include "cuda/device/await.cuh"
#include "cuda/device/fp8_rows.cuh"
#include "cuda/device/status.cuh"
#include "cuda/device/store.cuh"
#include "cuda/kernels/combine_args.cuh"
#include "protocol/reduce.hpp"
#include "protocol/route.hpp"

namespace moe_ep::cuda {

struct TokenSources {
  std::int32_t count = 0;  // -1: a wait ran out
  std::int32_t own = -1;   // which of them is this rank's own row, not in wire form
};

// What a peer's entry says about its rows. Pulls only: pushing steps know it from await_entries.
struct Entry {
  bool late;   // it did not come
  bool alike;  // it combines as this rank does; await_entries records if it does not
  bool parts;  // its rows come part by part
};

__device__ __forceinline__ Entry await_entry(const CombineArgs& args, Epoch epoch,
                                             std::int32_t peer, bool live) {
  const protocol::Workspace& workspace = args.params.workspace;
  std::uint32_t code = args.code | protocol::kRowsPlaced;
  // Pairs with announce.
  const bool late =
      live && !await_tag(patience_of(args), &workspace.line(workspace.rank, peer)->combine_flag,
                         epoch, code);
  return {late, (code & ~protocol::kRowsPlaced) == args.code, (code & protocol::kRowsPlaced) == 0};
}

// Fills the warp's list of a token's rows. Waits for those that are not there yet. A rehearsal has
// one row, of another rank.
__device__ __forceinline__ TokenSources find_sources(CombineTables& tables, const CombineArgs& args,
                                                     Epoch epoch, std::int32_t token,
                                                     std::int32_t part, bool live) {
  const protocol::Workspace& workspace = args.params.workspace;
  const protocol::Hop* hops = workspace.hops(token);
  const std::int32_t capacity = workspace.layout.hops_per_token();
  const std::int32_t me = workspace.rank;
  const std::byte** list = tables.sources[warp_id()];
  TokenSources found;
  __syncwarp();  // the list's last readers are done
  for (std::int32_t first = 0; first < capacity; first += kWarp) {
    const std::int32_t index = first + lane_id();
    protocol::Hop hop{-1, 0};
    if (live && index < capacity) hop = hops[index];
    if (!protocol::can_be_hop(args.params, hop)) hop.rank = -1;
    if (!live && index == 0) hop.rank = me == 0 ? workspace.layout.num_ranks - 1 : 0;
    const std::uint32_t ends = __ballot_sync(~0u, hop.rank < 0);
    const std::int32_t here = ends == 0 ? kWarp : __ffs(static_cast<int>(ends)) - 1;
    const bool mine = lane_id() < here;
    const std::uint32_t owns = __ballot_sync(~0u, mine && hop.rank == me);
    if (owns != 0) found.own = first + __ffs(static_cast<int>(owns)) - 1;
    Entry entry{false, true, false};
    if (mine && hop.rank == me) {
      list[index] = args.own_row(me, hop.row);
    } else if (mine) {
      const bool lands = args.push && tables.landing_in[hop.rank] >= 0;
      if (lands) {
        std::int64_t at = tables.landing_in[hop.rank] + hop.row * args.wire_stride;
        if (at + args.wire_stride > args.landing_end) at = args.landing_begin;  // a corrupt list
        list[index] = workspace.own() + at;
      } else {
        list[index] = args.params.row(hop.rank, me, hop.row);
      }
      if (args.push) {
        entry.parts = lands || !tables.placed.test(hop.rank);
      } else {
        entry = await_entry(args, epoch, hop.rank, live);
      }
      if (entry.parts && entry.alike && !entry.late) {
        // Pairs with send_rows and encode_rows.
        entry.late =
            live && !await_flag(patience_of(args), args.flags(me, hop.rank, hop.row) + part, epoch);
      }
    }
    if (__any_sync(~0u, entry.late || !entry.alike)) {
      if (__any_sync(~0u, entry.late)) {
        record_late(workspace.header(), args.record, Phase::kCombine, epoch, hop.rank, entry.late);
      }
      found.count = -1;
      return found;
    }
    found.count += here;
    if (ends != 0) break;
  }
  __syncwarp();  // the list is complete; every lane sees what the flags announced
  return found;
}

// Adds rows of plain elements, a vector of each a round.
template <class Codec, bool Wide, bool Quantised>
struct PlainSum {
  static constexpr int kSize = sizeof(typename Codec::Bits);
  static constexpr int kElements = Wide ? 16 / kSize : 1;  // of a lane in a vector
  static constexpr int kVectors = Wide ? 1 : 2;
  static constexpr int kBatch = 4;
  static constexpr std::int32_t kRound = kWarp * kElements * kVectors;  // elements

  static __device__ __forceinline__ void add_round(const CombineArgs& args,
                                                   const std::byte* const* list,
                                                   const TokenSources& found, std::int32_t token,
                                                   std::int32_t first, std::int32_t elements) {
    const auto element = [&](int i) { return first + (i * kWarp + lane_id()) * kElements; };
    float sum[kVectors][kElements];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        sum[i][j] = found.count == 0 ? protocol::kEmptySum : protocol::kSumIdentity;
      }
    }
    for (std::int32_t row = 0; row < found.count; row += kBatch) {
      uint4 held[kBatch][kVectors];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (row + b >= found.count) break;
        const std::byte* from = list[row + b];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          if (element(i) < elements) {
            held[b][i] = load_vector<kElements * kSize>(
                from + static_cast<std::int64_t>(element(i)) * kSize);
          }
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (row + b >= found.count) break;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
          for (int j = 0; j < kElements; ++j) {
            float value = element_of<Codec, kElements>(held[b][i], j);
            if (!Wide && args.finite_only && !protocol::is_finite(value)) {
              value = protocol::bits_float(protocol::kQuietNanBits);
            }
            sum[i][j] = protocol::sum_next(sum[i][j], value);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      store_sums<Quantised>(args.output, token, element(i), element(i) < elements, elements, sum[i],
                            args.wide_output);
    }
  }
};

// Adds rows in the FP8 wire format; the own row is encoded on the way, to the same codes.
template <class Codec, bool Wide, bool Quantised>
struct Fp8Sum {
  static constexpr int kElements = Wide ? 16 : 1;
  static constexpr int kBatch = 4;
  static constexpr std::int32_t kRound = kWarp * kElements;

  // What a lane needs of a row.
  struct Part {
    uint4 codes;
    float scale;
  };

  static __device__ __forceinline__ float sum_up(float sum, float value, float factor) {
    return protocol::sum_next(sum, protocol::mul_rn(value, factor));
  }

  static __device__ __forceinline__ void add_round(const CombineArgs& args,
                                                   const std::byte* const* list,
                                                   const TokenSources& found, std::int32_t token,
                                                   std::int32_t first, std::int32_t elements) {
    const std::int32_t element = first + lane_id() * kElements;
    const bool valid = element < elements;
    const std::int64_t scale_at =
        protocol::fp8_scales_offset(elements) + 4 * (element / protocol::kFp8BlockElements);
    Fp8Codes<Wide> own{};
    const auto load = [&](Part& part, std::int32_t row) {
      if (row == found.own || !valid) return;
      part.codes = load_vector<kElements>(list[row] + element);
      part.scale = load_scale(list[row] + scale_at, Wide);
    };
    const auto take_own = [&](Part& part, std::int32_t row) {
      if (row != found.own) return;
      part.scale = own.scale;
      part.codes.x = own.words[0];
      if constexpr (Wide) {
        part.codes = make_uint4(own.words[0], own.words[1], own.words[2], own.words[3]);
      }
    };
    // The first rows are loaded whole; of the others only scales, for the lift.
    Part parts[kBatch] = {};
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (b < found.count) load(parts[b], b);
    }
    if (found.own >= 0) {  // while the others are on their way
      const std::int32_t begin =
          Wide ? first : first / protocol::kFp8BlockElements * protocol::kFp8BlockElements;
      own = encode_unit<Codec, Wide>(list[found.own], begin, elements);
      if (!Wide) own.words[0] >>= 8 * ((first - begin) / kWarp);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      take_own(parts[b], b);
    float max_scale = 0.0f;
    for (std::int32_t row = kBatch; valid && row < found.count; ++row) {
      const float scale = row == found.own ? own.scale : load_scale(list[row] + scale_at, Wide);
      max_scale = max_scale < scale ? scale : max_scale;
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      max_scale = max_scale < parts[b].scale ? parts[b].scale : max_scale;
    }
    const float lift = protocol::fp8_lift(max_scale);
    float sum[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      sum[i] = found.count == 0 ? protocol::kEmptySum : protocol::kSumIdentity;
    }
    for (std::int32_t row = 0; row < found.count; row += kBatch) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (row == 0 || row + b >= found.count) continue;
        load(parts[b], row + b);
        take_own(parts[b], row + b);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (row + b >= found.count) break;
        const float factor = protocol::mul_rn(parts[b].scale, lift);
        const uint4& codes = parts[b].codes;
        const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        if constexpr (Wide) {
#pragma unroll
          for (int i = 0; i < kElements; i += 2) {
            const float2 pair = unpack_e4m3(words[i / 4] >> (i % 4 * 8) & 0xffff);
            sum[i] = sum_up(sum[i], pair.x, factor);
            sum[i + 1] = sum_up(sum[i + 1], pair.y, factor);
          }
        } else {
          sum[0] = sum_up(sum[0], unpack_e4m3(words[0] & 0xff).x, factor);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i)
      sum[i] = protocol::fp8_unlift(sum[i], lift);
    store_sums<Quantised>(args.output, token, element, valid, elements, sum, args.wide_output);
  }
};

// Adds every num_warps-th unit from number `warp` on. False if a wait ran out.
template <class Sum>
__device__ __forceinline__ bool sum_tokens(CombineTables& tables, const CombineArgs& args,
                                           Epoch epoch, std::int32_t warp, std::int32_t num_warps,
                                           bool live) {
  const std::int32_t num_units = args.params.num_tokens * args.units_per_token();
  const std::int32_t unit_elements = args.rounds_per_unit * Sum::kRound;
  for (std::int32_t unit = warp; unit < num_units; unit += num_warps) {
    const std::int32_t token = args.units(unit);
    const std::int32_t index = unit - token * args.units_per_token();
    const TokenSources found =
        find_sources(tables, args, epoch, token, args.num_parts > 1 ? index : 0, live);
    if (found.count < 0) return false;
    const std::int32_t begin = index * unit_elements;
    const std::int32_t end = min(begin + unit_elements, args.params.elements);
    for (std::int32_t first = begin; first < end; first += Sum::kRound) {
      Sum::add_round(args, tables.sources[warp_id()], found, token, first,
                     live ? args.params.elements : 0);
      if (!live) return true;
    }
  }
  return true;
}

}  // namespace moe_ep::cuda
