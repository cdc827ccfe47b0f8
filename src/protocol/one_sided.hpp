// One-sided dispatch and combine: the order of things in a step, for any transport policy.
//
// dispatch   route | put rows and announce them | await every active peer | accept lines, mark rows
//            without a token
// combine    place own rows | announce | await every active peer | get each token's rows and sum
//
// Each phase is a sequence of parts with a coop.sync() between them; thread 0 does what one thread
// must do. A part that fails leaves its StepStatus in `shared`, which all threads read after the
// next sync, so that they leave together.
#pragma once

#include <cstdint>

#include "protocol/combine_check.hpp"
#include "protocol/concepts.hpp"
#include "protocol/route.hpp"
#include "protocol/step.hpp"
#include "protocol/transport/lamport_reset.hpp"
#include "protocol/wait.hpp"

namespace moe_ep::protocol {

// Puts the rows of tokens `first`, `first + step`, ... into every rank they visit.
template <class T, Memory M>
MOE_EP_HD void put_tokens(M& memory, const DispatchParams& params, std::int32_t first,
                          std::int32_t step) {
  for (std::int32_t token = first; token < params.num_tokens; token += step) {
    std::int32_t ids[kMaxTopK];
    if (params.ids_payload >= 0) {
      const IdRow row = params.ids(token);
      for (std::int32_t k = 0; k < params.top_k; ++k) {
        const std::int64_t id = row[k];
        ids[k] =
            params.ownership.is_void(id) ? params.invalid_expert_id : static_cast<std::int32_t>(id);
      }
    }
    for_each_hop(params, token, [&](const Hop& hop) {
      for (std::int32_t payload = 0; payload < params.num_payloads; ++payload) {
        const Payload& from = params.payloads[payload];
        const std::byte* source = payload == params.ids_payload
                                      ? reinterpret_cast<const std::byte*>(ids)
                                      : from.rows + token * from.stride;
        T::put_row(memory, params.row(hop.rank, payload, params.workspace.rank, hop.row), source,
                   params.row_bytes(payload));
      }
      if constexpr (requires { T::count_token(memory, params, hop.rank); }) {
        T::count_token(memory, params, hop.rank);
      }
    });
  }
}

// Tells every active peer what was put. One thread, after all rows.
template <class T, Memory M>
MOE_EP_HD void announce_dispatch(M& memory, const DispatchParams& params, Epoch epoch) {
  const Workspace& workspace = params.workspace;
  params.active.for_each([&](std::int32_t peer) {
    if (params.eplb_local_stats != nullptr) {
      memory.copy_row(workspace.slice(peer) + workspace.layout.eplb_row(workspace.rank),
                      reinterpret_cast<const std::byte*>(params.eplb_local_stats),
                      4ll * workspace.layout.eplb_experts);
    }
    PeerLine* line = workspace.line(peer, workspace.rank);
    line->num_rows = workspace.send_counts()[peer];
    line->signature = params.signature;
    T::publish_dispatch(memory, line, epoch);  // pairs with T::dispatch_arrived in accept_dispatch
  });
}

// Awaits every active peer's rows and checks what it announced. One thread.
template <class T, Memory M>
MOE_EP_HD StepStatus accept_dispatch(M& memory, const DispatchParams& params, Epoch epoch) {
  const Workspace& workspace = params.workspace;
  StepStatus status;
  status.phase = Phase::kDispatch;
  status.epoch = epoch;
  const std::uint64_t deadline = memory.now_ns() + params.timeout_ns;
  status.missing = await_peers(memory, params.active, deadline, [&](std::int32_t peer) {
    return T::dispatch_arrived(memory, workspace.line(workspace.rank, peer), epoch);
  });
  for (std::int32_t peer = 0; peer < workspace.layout.num_ranks; ++peer) {
    std::int32_t& count = workspace.recv_counts()[peer];
    count = 0;
    if (!params.active.test(peer) || status.missing.test(peer)) continue;
    const PeerLine* line = workspace.line(workspace.rank, peer);
    const std::int32_t field = params.signature.first_difference(line->signature);
    if (field >= 0) {
      // A difference explains more than the silence of others: it wins over a timeout.
      status.result = StepResult::kMismatch;
      status.peer = peer;
      status.field = field;
      status.want = params.signature.fields[field];
      status.got = line->signature.fields[field];
      return status;
    }
    const std::int32_t num_rows = line->num_rows;
    if (num_rows < 0 || num_rows > params.tokens_per_rank) {
      status.result = StepResult::kCorrupt;
      status.peer = peer;
      status.want = params.tokens_per_rank;
      status.got = num_rows;
      return status;
    }
    count = num_rows;
  }
  if (!status.missing.empty()) status.result = StepResult::kTimeout;
  return status;
}

// Writes `invalid` over all ids of rows without a token. Blocks are split over the threads. Counts
// outside 0..T are taken for the nearest of these.
MOE_EP_HD inline void mark_empty_rows(std::int32_t* ids, const std::int32_t* recv_counts,
                                      std::int32_t num_ranks, std::int32_t tokens_per_rank,
                                      std::int32_t top_k, std::int32_t invalid, std::int32_t first,
                                      std::int32_t step) {
  for (std::int32_t src = first; src < num_ranks; src += step) {
    const std::int32_t count = recv_counts[src] < 0 ? 0 : recv_counts[src];
    const std::int64_t begin = (static_cast<std::int64_t>(src) * tokens_per_rank + count) * top_k;
    const std::int64_t end = static_cast<std::int64_t>(src + 1) * tokens_per_rank * top_k;
    for (std::int64_t index = begin; index < end; ++index)
      ids[index] = invalid;
  }
}

// Gathered statistics of ranks that take no part read as zero.
MOE_EP_HD inline void clear_absent_stats(const DispatchParams& params) {
  const Workspace& workspace = params.workspace;
  for (std::int32_t peer = 0; peer < workspace.layout.num_ranks; ++peer) {
    if (params.active.test(peer)) continue;
    auto* row = reinterpret_cast<std::int32_t*>(workspace.own() + workspace.layout.eplb_row(peer));
    for (std::int32_t expert = 0; expert < workspace.layout.eplb_experts; ++expert)
      row[expert] = 0;
  }
}

// The next epoch, and where the own tokens go. One thread.
MOE_EP_HD inline void begin_dispatch(const DispatchParams& params,
                                     RowPlacement placement = RowPlacement::kCompact) {
  SliceHeader* header = params.workspace.header();
  header->epoch = next_epoch(header->epoch);
  header->active = params.active;
  route_tokens(params, placement);
}

// Marks the rows of accepted blocks that hold no token. Blocks are split over the threads.
MOE_EP_HD inline void finish_dispatch(const DispatchParams& params, std::int32_t first,
                                      std::int32_t step) {
  const Workspace& workspace = params.workspace;
  if (params.ids_payload < 0) return;
  mark_empty_rows(
      reinterpret_cast<std::int32_t*>(params.row(workspace.rank, params.ids_payload, 0, 0)),
      workspace.recv_counts(), workspace.layout.num_ranks, params.tokens_per_rank, params.top_k,
      params.invalid_expert_id, first, step);
}

// One rank's dispatch. Every thread of `coop` calls it with the same `shared`; all return the same.
template <class T, Coop C, Memory M>
MOE_EP_HD StepStatus dispatch(C& coop, M& memory, const DispatchParams& params,
                              StepStatus& shared) {
  const bool leader = coop.thread_rank() == 0;
  const Workspace& workspace = params.workspace;
  if (leader) begin_dispatch(params);
  coop.sync();
  put_tokens<T>(memory, params, coop.thread_rank(), coop.size());
  coop.sync();
  if (leader) {
    const Epoch epoch = workspace.header()->epoch;
    announce_dispatch<T>(memory, params, epoch);
    shared = accept_dispatch<T>(memory, params, epoch);
    if (params.eplb_local_stats != nullptr) clear_absent_stats(params);
  }
  coop.sync();
  const StepStatus status = shared;
  if (status.ok()) finish_dispatch(params, coop.thread_rank(), coop.size());
  coop.sync();
  return status;
}

// Tells every active peer that this rank's combine rows are in place. One thread, after all rows.
template <class T, Memory M>
MOE_EP_HD void announce_combine(M& memory, const CombineParams& params, Epoch epoch) {
  const Workspace& workspace = params.workspace;
  params.active.for_each([&](std::int32_t peer) {
    PeerLine* line = workspace.line(peer, workspace.rank);
    line->combine_code = combine_code(params.row_bytes, params.format) | kRowsPlaced;
    T::publish_combine(memory, line, epoch);  // pairs with T::combine_arrived in accept_combine
  });
}

template <class T, Memory M>
MOE_EP_HD StepStatus accept_combine(M& memory, const CombineParams& params, Epoch epoch) {
  const Workspace& workspace = params.workspace;
  StepStatus status;
  status.phase = Phase::kCombine;
  status.epoch = epoch;
  const std::uint64_t deadline = memory.now_ns() + params.timeout_ns;
  status.missing = await_peers(memory, params.active, deadline, [&](std::int32_t peer) {
    return T::combine_arrived(memory, workspace.line(workspace.rank, peer), epoch);
  });
  if (!status.missing.empty()) status.result = StepResult::kTimeout;
  (params.active - status.missing).for_each([&](std::int32_t peer) {
    check_combine_code(params, peer, workspace.line(workspace.rank, peer)->combine_code, status);
  });
  return status;
}

// One rank's combine. `rows` is the arithmetic: rows.place(to, from) brings one expert output row
// into wire form, rows.sum(token, sources, n) adds n wire rows into the token's result.
template <class T, Coop C, Memory M, class Rows>
MOE_EP_HD StepStatus combine(C& coop, M& memory, Rows& rows, const CombineParams& params,
                             StepStatus& shared) {
  const Workspace& workspace = params.workspace;
  const std::int32_t me = workspace.rank;
  if (params.expert_output != nullptr || (params.format & kCombineFp8Wire) != 0) {
    for (std::int32_t src = 0; src < workspace.layout.num_ranks; ++src) {
      const std::int32_t num_rows = num_received(workspace, params.tokens_per_rank, src);
      for (std::int32_t row = coop.thread_rank(); row < num_rows; row += coop.size()) {
        std::byte* to = params.row(me, src, row);
        const std::int64_t index = static_cast<std::int64_t>(src) * params.tokens_per_rank + row;
        rows.place(to, params.expert_output == nullptr
                           ? to
                           : params.expert_output + index * params.expert_output_stride);
      }
    }
  }
  coop.sync();
  if (coop.thread_rank() == 0) {
    const Epoch epoch = workspace.header()->epoch;
    announce_combine<T>(memory, params, epoch);
    shared = accept_combine<T>(memory, params, epoch);
  }
  coop.sync();
  const StepStatus status = shared;
  if (status.ok()) {
    for (std::int32_t token = coop.thread_rank(); token < params.num_tokens; token += coop.size()) {
      const std::byte* sources[kMaxTopK];
      std::int32_t num_sources = 0;
      for_each_hop(params, token, [&](const Hop& hop) {
        sources[num_sources++] = params.row(hop.rank, me, hop.row);
      });
      rows.sum(token, sources, num_sources);
    }
  }
  coop.sync();
  return status;
}

// Arms the own slice: epoch and every flag read `epoch`, so that the next step is its successor.
// The caller puts a barrier between every rank's reset and the next step.
MOE_EP_HD inline void reset_slice(const Workspace& workspace, Epoch epoch) {
  SliceHeader header{};
  header.magic = kSliceMagic;
  header.epoch = epoch;
  header.rank = workspace.rank;
  header.num_ranks = workspace.layout.num_ranks;
  header.max_tokens = workspace.layout.max_tokens;
  if (workspace.layout.lamport.enabled()) header.lamport_lines = workspace.layout.lamport.lines;
  if (workspace.layout.counted) {
    header.counters = workspace.layout.counters;
    header.accounts = workspace.layout.accounts;
  }
  *workspace.header() = header;
  for (std::int32_t peer = 0; peer < workspace.layout.num_ranks; ++peer) {
    PeerLine line{};
    line.dispatch_flag = epoch;
    line.combine_flag = epoch;
    *workspace.line(workspace.rank, peer) = line;
    workspace.recv_counts()[peer] = 0;
    workspace.send_counts()[peer] = 0;
    if (workspace.layout.counted) {
      reinterpret_cast<CountedLine*>(workspace.own() + workspace.layout.counters)[peer] = {};
      reinterpret_cast<CountedAccount*>(workspace.own() + workspace.layout.accounts)[peer] = {};
    }
  }
  reset_lamport(workspace, epoch);
}

}  // namespace moe_ep::protocol
