// Dispatch of a Lamport step. What travels from rank A to every other active rank B:
//
//   line      16 tags: the step signature, the number of rows that come, and later the combine's
//             announcement (lamport_combine.hpp)
//   tag rows  one for each of the T rows of block A, whether the token comes to B or not: the id
//             words, then the words of weights and scales. An id word holds the id, kVoidId or, in
//             the first word, kNotHere; a row that does not come has no further words.
//   data row  hidden_states, where the token comes
//
// Token t of A lands in row t of A's block and is copied to row A * T + t of the results, whose
// addresses are the fence steps'. The own rank's rows go there directly.
//
// Why nothing crosses. Let A send step e + 1 to B. A has finished combine e, for which it took B's
// combine tag e, which B put after it had taken and re-armed all of step e's dispatch and its
// experts were done with the results. So B's re-arming of step e precedes A's words of e + 1, and
// so would a single bank be safe; two banks keep ids and rows of neighbouring steps apart even
// where a combine does not wait for a rank it exchanges no rows with. The combine rows that B
// re-armed in combine e precede B's line of e + 1, which A takes before it puts combine rows of e
// + 1. Fence steps in between keep both chains (fence.hpp). The edge is the tag's, not the bank's:
// with relaxed tags any number of banks only makes the fault rarer.
//
// Tags compare epochs for equality, flags of fence steps by half the range. A bank's tags and the
// flags that no step wrote for kStampSteps steps are stamped by their reader, so that none is ever
// old enough to pass for new after 2^31 or 2^32 steps.
#pragma once

#include <cstdint>

#include "protocol/one_sided.hpp"
#include "protocol/step.hpp"
#include "protocol/transport/lamport.hpp"
#include "protocol/wait.hpp"

namespace moe_ep::protocol {

// Tags of a line. 0..13: the fields of the signature.
inline constexpr std::int32_t kLineRows = 14;     // rows that come
inline constexpr std::int32_t kLineCombine = 15;  // combine_code()
static_assert(kNumSignatureFields <= kLineRows && 8 * (kLineCombine + 1) == kLamportLineBytes);

// Id words on their way. Ids of experts are not negative.
inline constexpr std::uint32_t kVoidId = static_cast<std::uint32_t>(-1);
inline constexpr std::uint32_t kNotHere = static_cast<std::uint32_t>(-2);

// Steps after which an unused bank's tags are stamped.
inline constexpr Epoch kStampSteps = 1u << 16;

// What a test may plant a fault in.
struct LamportRules {
  // The bank of a step's dispatch.
  static MOE_EP_HD constexpr std::int32_t bank(Epoch epoch) {
    return static_cast<std::int32_t>(epoch % kLamportBanks);
  }
  // Whom a combine waits for: all active peers, not only those it expects rows of.
  static constexpr bool kCombineAwaitsEveryPeer = true;
};

// Addresses in `owner`'s slice.
MOE_EP_HD inline std::uint64_t* lamport_line(const Workspace& workspace, std::int32_t owner,
                                             std::int32_t bank, std::int32_t src) {
  return reinterpret_cast<std::uint64_t*>(workspace.slice(owner) +
                                          workspace.layout.lamport.line(bank, src));
}
MOE_EP_HD inline std::uint64_t* lamport_tags(const Workspace& workspace, std::int32_t owner,
                                             std::int32_t bank, std::int32_t src,
                                             std::int32_t token) {
  return reinterpret_cast<std::uint64_t*>(workspace.slice(owner) +
                                          workspace.layout.lamport.tag_row(bank, src, token));
}

// The peers of a step: its active ranks without the own one.
MOE_EP_HD inline RankMask peers_of(const Workspace& workspace, const RankMask& active) {
  RankMask peers = active;
  peers.reset(workspace.rank);
  return peers;
}

// Whether a step of these widths fits the landing rows. Depends on the signature alone.
MOE_EP_HD inline bool fits_lamport(const DispatchParams& params) {
  const LamportLayout& layout = params.workspace.layout.lamport;
  std::int64_t tags = 0;
  for (std::int32_t payload = 1; payload < params.num_payloads; ++payload)
    tags += LamportLayout::num_tags(params.row_bytes(payload));
  return params.tokens_per_rank <= layout.max_tokens && params.row_bytes(0) <= layout.row_stride &&
         8 * tags <= layout.tag_stride;
}

// Puts token `token`'s part of peer `peer`. Payload 0 travels as data, ids as payload 1, the others
// as tags behind them. Token num_tokens and later: rows that do not come.
template <TagMemory M>
MOE_EP_HD void put_lamport_row(M& memory, const DispatchParams& params, std::int32_t peer,
                               std::int32_t bank, std::int32_t token, bool comes, Epoch epoch) {
  const Workspace& workspace = params.workspace;
  std::uint64_t* tags = lamport_tags(workspace, peer, bank, workspace.rank, token);
  if (!comes) {
    memory.store_tag(tags, make_tag(epoch, kNotHere));
    return;
  }
  const IdRow ids = params.ids(token);
  for (std::int32_t k = 0; k < params.top_k; ++k) {
    const std::int64_t id = ids[k];
    memory.store_tag(
        tags++,
        make_tag(epoch, params.ownership.is_void(id) ? kVoidId : static_cast<std::uint32_t>(id)));
  }
  for (std::int32_t payload = 2; payload < params.num_payloads; ++payload) {
    const Payload& from = params.payloads[payload];
    put_tag_row(memory, tags, from.rows + token * from.stride, params.row_bytes(payload), epoch);
    tags += LamportLayout::num_tags(params.row_bytes(payload));
  }
  const LamportLayout& layout = workspace.layout.lamport;
  put_data_row(memory, workspace.slice(peer) + layout.row(bank, workspace.rank, token),
               params.payloads[0].rows + token * params.payloads[0].stride, params.row_bytes(0),
               layout.words);
}

// Fills row `token` of the own block of the results.
template <Memory M>
MOE_EP_HD void keep_own_row(M& memory, const DispatchParams& params, std::int32_t token,
                            bool comes) {
  const std::int32_t me = params.workspace.rank;
  auto* ids = reinterpret_cast<std::int32_t*>(params.row(me, params.ids_payload, me, token));
  const IdRow row = comes ? params.ids(token) : IdRow{};
  for (std::int32_t k = 0; k < params.top_k; ++k) {
    const std::int64_t id = comes ? row[k] : -1;
    ids[k] =
        params.ownership.is_void(id) ? params.invalid_expert_id : static_cast<std::int32_t>(id);
  }
  if (!comes) return;
  for (std::int32_t payload = 0; payload < params.num_payloads; ++payload) {
    if (payload == params.ids_payload) continue;
    const Payload& from = params.payloads[payload];
    memory.copy_row(params.row(me, payload, me, token), from.rows + token * from.stride,
                    params.row_bytes(payload));
  }
}

// Puts the rows `first`, `first + step`, ... of the own block into every active rank.
template <TagMemory M>
MOE_EP_HD void put_lamport_rows(M& memory, const DispatchParams& params, std::int32_t bank,
                                Epoch epoch, std::int32_t first, std::int32_t step) {
  const std::int32_t me = params.workspace.rank;
  for (std::int32_t token = first; token < params.tokens_per_rank; token += step) {
    RankMask visited;
    if (token < params.num_tokens) {
      for_each_hop(params, token, [&](const Hop& hop) { visited.set(hop.rank); });
    }
    peers_of(params.workspace, params.active).for_each([&](std::int32_t peer) {
      put_lamport_row(memory, params, peer, bank, token, visited.test(peer), epoch);
    });
    keep_own_row(memory, params, token, visited.test(me));
  }
}

// Tells every peer what the step is. One thread.
template <TagMemory M>
MOE_EP_HD void put_lamport_lines(M& memory, const DispatchParams& params, std::int32_t bank,
                                 Epoch epoch) {
  const Workspace& workspace = params.workspace;
  peers_of(workspace, params.active).for_each([&](std::int32_t peer) {
    std::uint64_t* line = lamport_line(workspace, peer, bank, workspace.rank);
    for (std::int32_t field = 0; field < kNumSignatureFields; ++field) {
      memory.store_tag(line + field,
                       make_tag(epoch, static_cast<std::uint32_t>(params.signature.fields[field])));
    }
    const std::int32_t num_rows = workspace.send_counts()[peer];
    memory.store_tag(line + kLineRows, make_tag(epoch, static_cast<std::uint32_t>(num_rows)));
  });
}

// Awaits every peer's line, checks it and sets recv_counts. One thread.
template <TagMemory M>
MOE_EP_HD StepStatus accept_lamport_lines(M& memory, const DispatchParams& params,
                                          std::int32_t bank, Epoch epoch,
                                          std::uint64_t deadline_ns) {
  const Workspace& workspace = params.workspace;
  StepStatus status;
  status.phase = Phase::kDispatch;
  status.epoch = epoch;
  for (std::int32_t peer = 0; peer < workspace.layout.num_ranks; ++peer)
    workspace.recv_counts()[peer] = 0;
  workspace.recv_counts()[workspace.rank] = workspace.send_counts()[workspace.rank];
  peers_of(workspace, params.active).for_each([&](std::int32_t peer) {
    if (status.result != StepResult::kOk) return;
    const std::uint64_t* line = lamport_line(workspace, workspace.rank, bank, peer);
    for (std::int32_t field = 0; field < kNumSignatureFields; ++field) {
      std::uint32_t value = 0;
      if (!take_tag(memory, line + field, epoch, deadline_ns, value)) {
        status.missing.set(peer);
        return;
      }
      const auto got = static_cast<std::int32_t>(value);
      if (got == params.signature.fields[field]) continue;
      // A difference explains more than the silence of others: it wins over a timeout.
      status.result = StepResult::kMismatch;
      status.peer = peer;
      status.field = field;
      status.want = params.signature.fields[field];
      status.got = got;
      return;
    }
    std::uint32_t num_rows = 0;
    if (!take_tag(memory, line + kLineRows, epoch, deadline_ns, num_rows)) {
      status.missing.set(peer);
    } else if (num_rows > static_cast<std::uint32_t>(params.tokens_per_rank)) {
      status.result = StepResult::kCorrupt;
      status.peer = peer;
      status.want = params.tokens_per_rank;
      status.got = static_cast<std::int32_t>(num_rows);
    } else {
      workspace.recv_counts()[peer] = static_cast<std::int32_t>(num_rows);
    }
  });
  if (status.ok() && !status.missing.empty()) status.result = StepResult::kTimeout;
  return status;
}

// Takes row `token` of block `src`. False: the time is up.
template <TagMemory M>
MOE_EP_HD bool take_lamport_row(M& memory, const DispatchParams& params, std::int32_t bank,
                                std::int32_t src, std::int32_t token, Epoch epoch,
                                std::uint64_t deadline_ns) {
  const Workspace& workspace = params.workspace;
  const std::int32_t me = workspace.rank;
  const std::uint64_t* tags = lamport_tags(workspace, me, bank, src, token);
  auto* ids = reinterpret_cast<std::int32_t*>(params.row(me, params.ids_payload, src, token));
  bool comes = true;
  for (std::int32_t k = 0; k < params.top_k; ++k) {
    std::uint32_t id = kNotHere;
    if (comes) {
      if (!take_tag(memory, tags++, epoch, deadline_ns, id)) return false;
      comes = id != kNotHere;
    }
    // kNotHere and kVoidId are void, too, and so is what no sender can have put there.
    const auto expert = static_cast<std::int32_t>(id);
    ids[k] = params.ownership.is_void(expert) ? params.invalid_expert_id : expert;
  }
  if (!comes) return true;
  for (std::int32_t payload = 2; payload < params.num_payloads; ++payload) {
    const std::int64_t bytes = params.row_bytes(payload);
    if (!take_tag_row(memory, params.row(me, payload, src, token), tags, bytes, epoch, deadline_ns))
      return false;
    tags += LamportLayout::num_tags(bytes);
  }
  const LamportLayout& layout = workspace.layout.lamport;
  return take_data_row(memory, params.row(me, 0, src, token),
                       workspace.own() + layout.row(bank, src, token), params.row_bytes(0),
                       layout.words, deadline_ns);
}

// Rows of absent ranks: ids only.
MOE_EP_HD inline void mark_absent_row(const DispatchParams& params, std::int32_t src,
                                      std::int32_t token) {
  auto* ids = reinterpret_cast<std::int32_t*>(
      params.row(params.workspace.rank, params.ids_payload, src, token));
  for (std::int32_t k = 0; k < params.top_k; ++k)
    ids[k] = params.invalid_expert_id;
}

// How the threads of a team tell each other that a peer's rows did not come: send_counts, which
// nobody reads between a dispatch's lines and the next dispatch, holds kLate.
inline constexpr std::uint32_t kLate = ~0u;

template <Memory M>
MOE_EP_HD void mark_late(M& memory, const Workspace& workspace, std::int32_t peer) {
  memory.store_relaxed(reinterpret_cast<std::uint32_t*>(workspace.send_counts() + peer), kLate);
}
// Adds the peers that threads found late before the last sync. One thread.
template <Memory M>
MOE_EP_HD void collect_late(M& memory, const Workspace& workspace, StepStatus& status) {
  for (std::int32_t peer = 0; peer < workspace.layout.num_ranks; ++peer) {
    const auto* count = reinterpret_cast<const std::uint32_t*>(workspace.send_counts() + peer);
    if (memory.load_relaxed(count) == kLate) status.missing.set(peer);
  }
  if (status.ok() && !status.missing.empty()) status.result = StepResult::kTimeout;
}

// Stamps the tags of the bank that this step does not use, and the fence steps' flags, if that was
// long ago. Nobody writes either before this rank's combine tag. One thread.
template <TagMemory M>
MOE_EP_HD void stamp_unused(M& memory, const Workspace& workspace, std::int32_t bank, Epoch epoch) {
  const std::int32_t other = (bank + 1) % kLamportBanks;
  Epoch& stamped = workspace.header()->lamport_stamped[other];
  if (epoch - stamped < kStampSteps) return;
  stamped = epoch;
  const LamportLayout& layout = workspace.layout.lamport;
  for (std::int32_t src = 0; src < layout.num_ranks; ++src) {
    std::uint64_t* line = lamport_line(workspace, workspace.rank, other, src);
    for (std::int64_t tag = 0; tag < kLamportLineBytes / 8; ++tag)
      memory.store_tag(line + tag, make_tag(epoch, 0));
    std::uint64_t* tags = lamport_tags(workspace, workspace.rank, other, src, 0);
    for (std::int64_t tag = 0; tag < layout.max_tokens * layout.tag_stride / 8; ++tag)
      memory.store_tag(tags + tag, make_tag(epoch, 0));
    PeerLine* flags = workspace.line(workspace.rank, src);
    memory.store_relaxed(&flags->dispatch_flag, epoch);
    memory.store_relaxed(&flags->combine_flag, epoch);
    memory.store_relaxed(&flags->landing_flag, epoch);
    memory.store_relaxed(&flags->done_flag, epoch);
  }
}

// One rank's dispatch. Every thread of `coop` calls it with the same `shared`; all return the same.
template <class Rules = LamportRules, Coop C, TagMemory M>
MOE_EP_HD StepStatus lamport_dispatch(C& coop, M& memory, const DispatchParams& params,
                                      StepStatus& shared) {
  const bool leader = coop.thread_rank() == 0;
  const Workspace& workspace = params.workspace;
  if (leader) begin_dispatch(params, RowPlacement::kByToken);
  coop.sync();
  const Epoch epoch = workspace.header()->epoch;
  const std::int32_t bank = Rules::bank(epoch);
  if (leader) put_lamport_lines(memory, params, bank, epoch);
  put_lamport_rows(memory, params, bank, epoch, coop.thread_rank(), coop.size());
  const std::uint64_t deadline = memory.now_ns() + params.timeout_ns;
  if (leader) shared = accept_lamport_lines(memory, params, bank, epoch, deadline);
  coop.sync();
  if (shared.ok()) {
    const std::int32_t num_rows = workspace.layout.num_ranks * params.tokens_per_rank;
    for (std::int32_t row = coop.thread_rank(); row < num_rows; row += coop.size()) {
      const std::int32_t src = row / params.tokens_per_rank;
      const std::int32_t token = row % params.tokens_per_rank;
      if (src == workspace.rank) continue;
      if (!params.active.test(src)) {
        mark_absent_row(params, src, token);
      } else if (!take_lamport_row(memory, params, bank, src, token, epoch, deadline)) {
        mark_late(memory, workspace, src);
      }
    }
  }
  coop.sync();
  if (leader && shared.ok()) {
    collect_late(memory, workspace, shared);
    stamp_unused(memory, workspace, bank, epoch);
  }
  coop.sync();
  return shared;
}

}  // namespace moe_ep::protocol
