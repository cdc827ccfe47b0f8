// Combine of a Lamport step: every rank pushes the answers to a source's tokens into the source's
// combine rows, which the source polls, sums in ascending rank order and arms again.
//
// One tag a peer, kLineCombine of the step's line, says that a rank has read its last expert output
// (which may be the dispatch's results themselves) and how its rows are coded. Everybody waits for
// everybody's: it ends the use of the dispatch's results and of its landing rows
// (lamport_dispatch.hpp), whatever transport the next step takes.
//
// On hosts one bank of combine rows would be enough: B puts rows of step e + 1 into A after it took
// A's line of dispatch e + 1, which A put after it had taken and re-armed its rows of combine e.
// Devices order less (docs/protocol.md, "On devices") and need both.
#pragma once

#include <cstdint>

#include "protocol/combine_check.hpp"
#include "protocol/transport/lamport_dispatch.hpp"
#include "protocol/transport/lamport_reset.hpp"

namespace moe_ep::protocol {

// Puts the combine tag into every peer. One thread.
template <TagMemory M>
MOE_EP_HD void put_combine_tags(M& memory, const CombineParams& params, std::int32_t bank,
                                Epoch epoch) {
  const Workspace& workspace = params.workspace;
  peers_of(workspace, params.active).for_each([&](std::int32_t peer) {
    memory.store_tag(lamport_line(workspace, peer, bank, workspace.rank) + kLineCombine,
                     make_tag(epoch, combine_code(params.row_bytes, params.format)));
  });
}

// Awaits the combine tags. One thread.
template <class Rules, TagMemory M>
MOE_EP_HD StepStatus accept_combine_tags(M& memory, const CombineParams& params, std::int32_t bank,
                                         Epoch epoch, std::uint64_t deadline_ns) {
  const Workspace& workspace = params.workspace;
  StepStatus status;
  status.phase = Phase::kCombine;
  status.epoch = epoch;
  if (!Rules::kCombineAwaitsEveryPeer) return status;
  peers_of(workspace, params.active).for_each([&](std::int32_t peer) {
    const std::uint64_t* tag = lamport_line(workspace, workspace.rank, bank, peer) + kLineCombine;
    std::uint32_t code = 0;
    if (!take_tag(memory, tag, epoch, deadline_ns, code)) {
      status.missing.set(peer);
    } else {
      check_combine_code(params, peer, code, status);
    }
  });
  if (status.ok() && !status.missing.empty()) status.result = StepResult::kTimeout;
  return status;
}

// Copies the answer to the own token `token` into the combine region, unless it is there.
template <Memory M>
MOE_EP_HD void keep_own_answer(M& memory, const CombineParams& params, std::int32_t token) {
  const std::int32_t me = params.workspace.rank;
  if (params.expert_output == nullptr || token >= params.num_tokens) return;
  for_each_hop(params, token, [&](const Hop& hop) {
    if (hop.rank != me) return;
    memory.copy_row(params.row(me, me, token), params.expert_row(me, token), params.row_bytes);
  });
}

// Pushes the answers to the tokens that this rank received, and keeps those to its own in the
// combine region; split over the threads. Nothing reads the expert output after it.
template <TagMemory M>
MOE_EP_HD void put_combine_rows(M& memory, const CombineParams& params, std::int32_t bank,
                                std::int32_t first, std::int32_t step) {
  const Workspace& workspace = params.workspace;
  const LamportLayout& layout = workspace.layout.lamport;
  const std::int32_t me = workspace.rank;
  const std::int32_t num_rows = layout.num_ranks * params.tokens_per_rank;
  for (std::int32_t row = first; row < num_rows; row += step) {
    const std::int32_t src = row / params.tokens_per_rank;
    const std::int32_t token = row % params.tokens_per_rank;
    if (!params.active.test(src)) continue;
    if (src == me) {
      keep_own_answer(memory, params, token);
      continue;
    }
    // The id tags of the dispatch are still there; the user's ids may have been overwritten.
    const std::uint64_t tag = memory.load_tag(lamport_tags(workspace, me, bank, src, token));
    if (tag_value(tag) == kNotHere) continue;
    put_data_row(memory, workspace.slice(src) + layout.combine_row(bank, me, token),
                 params.expert_row(src, token), params.row_bytes, kCombineWords);
  }
}

// Sums token `token`: rows.staging(i) is room for the i-th row that came. False: the time is up.
template <TagMemory M, class Rows>
MOE_EP_HD bool sum_token(M& memory, Rows& rows, const CombineParams& params, std::int32_t bank,
                         std::int32_t token, std::uint64_t deadline_ns) {
  const Workspace& workspace = params.workspace;
  const LamportLayout& layout = workspace.layout.lamport;
  const std::byte* sources[kMaxTopK];
  std::int32_t num_sources = 0;
  bool complete = true;
  for_each_hop(params, token, [&](const Hop& hop) {
    if (hop.rank == workspace.rank) {
      sources[num_sources++] = params.row(hop.rank, hop.rank, token);
      return;
    }
    std::byte* to = rows.staging(num_sources);
    sources[num_sources++] = to;
    if (take_data_row(memory, to, workspace.own() + layout.combine_row(bank, hop.rank, token),
                      params.row_bytes, kCombineWords, deadline_ns))
      return;
    complete = false;
    mark_late(memory, workspace, hop.rank);
  });
  if (complete) rows.sum(token, sources, num_sources);
  return complete;
}

// One rank's combine; `rows` as for combine() in one_sided.hpp, with staging rows.
template <class Rules = LamportRules, Coop C, TagMemory M, class Rows>
MOE_EP_HD StepStatus lamport_combine(C& coop, M& memory, Rows& rows, const CombineParams& params,
                                     StepStatus& shared) {
  const bool leader = coop.thread_rank() == 0;
  const Workspace& workspace = params.workspace;
  const Epoch epoch = workspace.header()->epoch;
  const std::int32_t bank = Rules::bank(epoch);
  put_combine_rows(memory, params, bank, coop.thread_rank(), coop.size());
  coop.sync();
  const std::uint64_t deadline = memory.now_ns() + params.timeout_ns;
  if (leader) {
    put_combine_tags(memory, params, bank, epoch);
    shared = accept_combine_tags<Rules>(memory, params, bank, epoch, deadline);
  }
  coop.sync();
  if (shared.ok()) {
    for (std::int32_t token = coop.thread_rank(); token < params.num_tokens; token += coop.size())
      sum_token(memory, rows, params, bank, token, deadline);
  }
  coop.sync();
  if (leader && shared.ok()) collect_late(memory, workspace, shared);
  coop.sync();
  return shared;
}

}  // namespace moe_ep::protocol
