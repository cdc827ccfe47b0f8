// Counted writes: every row that is put adds its bytes to a counter at the receiver, who waits
// until the counter has reached what it expects. Rows of a dispatch lie compact, as on the fence
// transport.
//
//   dispatch  line (number of rows, signature), flag; then rows, each followed by its bytes. The
//             receiver learns from the line what to expect and waits for it: no fence between rows
//             and flag.
//   combine   every rank puts the answers into its sources' landing rows, counting; then the flag,
//             which says that it has read its last expert output.
//
// A counter has one writer (the source), who adds with release, and one reader (the owner), who
// acquires. It is never reset: the owner's account holds the total that it expected so far, both
// are 64-bit and wrap, and a counter has reached an account when int64(counter - account) >= 0. All
// payload rows are multiples of 16 bytes.
//
// Why one set of rows is enough: as on the fence transport (fence.hpp), whose flags are used alike.
// Landing rows: B puts answers of step e + 1 into A after it acquired A's dispatch_flag e + 1,
// which A released after it had summed step e.
#pragma once

#include <cstdint>

#include "protocol/one_sided.hpp"
#include "protocol/transport/fence.hpp"

namespace moe_ep::protocol {

inline constexpr std::int64_t kCountedRowAlign = 16;

MOE_EP_HD inline CountedLine* counted_line(const Workspace& workspace, std::int32_t owner,
                                           std::int32_t src) {
  return reinterpret_cast<CountedLine*>(workspace.slice(owner) + workspace.layout.counters) + src;
}
MOE_EP_HD inline CountedAccount* counted_account(const Workspace& workspace, std::int32_t src) {
  return reinterpret_cast<CountedAccount*>(workspace.own() + workspace.layout.accounts) + src;
}
// Landing row `row` of block `dst` in `owner`'s slice: answers of rank dst.
MOE_EP_HD inline std::byte* landing_row(const CombineParams& params, std::int32_t owner,
                                        std::int32_t dst, std::int32_t row) {
  const std::int64_t index = static_cast<std::int64_t>(dst) * params.tokens_per_rank + row;
  return params.workspace.slice(owner) + params.workspace.layout.landing + index * params.row_bytes;
}

// Whether all rows of the step may be counted. Depends on the signature alone.
MOE_EP_HD inline bool fits_counted(const DispatchParams& params, std::int64_t combine_row_bytes) {
  bool fits = params.workspace.layout.counted && combine_row_bytes % kCountedRowAlign == 0;
  for (std::int32_t payload = 0; payload < params.num_payloads; ++payload)
    fits = fits && params.row_bytes(payload) % kCountedRowAlign == 0;
  return fits;
}

MOE_EP_HD inline std::uint64_t dispatch_token_bytes(const DispatchParams& params) {
  std::uint64_t bytes = 0;
  for (std::int32_t payload = 0; payload < params.num_payloads; ++payload)
    bytes += static_cast<std::uint64_t>(params.row_bytes(payload));
  return bytes;
}

struct CountedTransport : FenceTransport {
  static constexpr Transport kTransport = Transport::kCounted;

  // After all rows of a token at `dst`. Pairs with await_bytes.
  template <CounterMemory M>
  static MOE_EP_HD void count_token(M& memory, const DispatchParams& params, std::int32_t dst) {
    const Workspace& workspace = params.workspace;
    memory.add_release(&counted_line(workspace, dst, workspace.rank)->dispatch_bytes,
                       dispatch_token_bytes(params));
  }
};

// Waits until `counter` has reached `account`. Pairs with add_release.
template <CounterMemory M>
MOE_EP_HD bool await_bytes(M& memory, const std::uint64_t* counter, std::uint64_t account,
                           std::uint64_t deadline_ns) {
  return wait_until(memory, deadline_ns, [&] {
    return static_cast<std::int64_t>(memory.load_acquire(counter) - account) >= 0;
  });
}

// Waits for the rows that the accepted lines announced. One thread.
template <CounterMemory M>
MOE_EP_HD void await_dispatch_bytes(M& memory, const DispatchParams& params,
                                    std::uint64_t deadline_ns, StepStatus& status) {
  const Workspace& workspace = params.workspace;
  params.active.for_each([&](std::int32_t peer) {
    std::uint64_t& account = counted_account(workspace, peer)->dispatch_bytes;
    account +=
        static_cast<std::uint64_t>(workspace.recv_counts()[peer]) * dispatch_token_bytes(params);
    const std::uint64_t* counter = &counted_line(workspace, workspace.rank, peer)->dispatch_bytes;
    if (!await_bytes(memory, counter, account, deadline_ns)) status.missing.set(peer);
  });
  if (!status.missing.empty()) status.result = StepResult::kTimeout;
}

template <class T = CountedTransport, Coop C, CounterMemory M>
MOE_EP_HD StepStatus counted_dispatch(C& coop, M& memory, const DispatchParams& params,
                                      StepStatus& shared) {
  const bool leader = coop.thread_rank() == 0;
  if (leader) {
    begin_dispatch(params);
    announce_dispatch<T>(memory, params, params.workspace.header()->epoch);
  }
  coop.sync();
  put_tokens<T>(memory, params, coop.thread_rank(), coop.size());
  coop.sync();
  if (leader) {
    const std::uint64_t deadline = memory.now_ns() + params.timeout_ns;
    shared = accept_dispatch<T>(memory, params, params.workspace.header()->epoch);
    if (shared.ok()) await_dispatch_bytes(memory, params, deadline, shared);
    if (params.eplb_local_stats != nullptr) clear_absent_stats(params);
  }
  coop.sync();
  const StepStatus status = shared;
  if (status.ok()) finish_dispatch(params, coop.thread_rank(), coop.size());
  coop.sync();
  return status;
}

// Puts the answers to received tokens into their sources' landing rows, split over the threads.
template <CounterMemory M, class Rows>
MOE_EP_HD void put_answers(M& memory, Rows& rows, const CombineParams& params, std::int32_t first,
                           std::int32_t step) {
  const Workspace& workspace = params.workspace;
  const std::int32_t me = workspace.rank;
  params.active.for_each([&](std::int32_t src) {
    const std::int32_t num_rows = num_received(workspace, params.tokens_per_rank, src);
    for (std::int32_t row = first; row < num_rows; row += step) {
      rows.place(landing_row(params, src, me, row), params.expert_row(src, row));
      // Pairs with await_bytes.
      memory.add_release(&counted_line(workspace, src, me)->combine_bytes,
                         static_cast<std::uint64_t>(params.row_bytes));
    }
  });
}

// Waits for the answers to the own tokens. One thread.
template <CounterMemory M>
MOE_EP_HD void await_answers(M& memory, const CombineParams& params, std::uint64_t deadline_ns,
                             StepStatus& status) {
  const Workspace& workspace = params.workspace;
  params.active.for_each([&](std::int32_t peer) {
    std::uint64_t& account = counted_account(workspace, peer)->combine_bytes;
    account += static_cast<std::uint64_t>(workspace.send_counts()[peer]) *
               static_cast<std::uint64_t>(params.row_bytes);
    const std::uint64_t* counter = &counted_line(workspace, workspace.rank, peer)->combine_bytes;
    if (!await_bytes(memory, counter, account, deadline_ns)) status.missing.set(peer);
  });
  if (!status.missing.empty()) status.result = StepResult::kTimeout;
}

template <class T = CountedTransport, Coop C, CounterMemory M, class Rows>
MOE_EP_HD StepStatus counted_combine(C& coop, M& memory, Rows& rows, const CombineParams& params,
                                     StepStatus& shared) {
  const Workspace& workspace = params.workspace;
  const std::int32_t me = workspace.rank;
  // Rows of 0 bytes end an abandoned round: there are none.
  if (params.row_bytes > 0) put_answers(memory, rows, params, coop.thread_rank(), coop.size());
  coop.sync();
  if (coop.thread_rank() == 0) {
    const Epoch epoch = workspace.header()->epoch;
    announce_combine<T>(memory, params, epoch);
    const std::uint64_t deadline = memory.now_ns() + params.timeout_ns;
    shared = accept_combine<T>(memory, params, epoch);
    if (shared.ok()) await_answers(memory, params, deadline, shared);
  }
  coop.sync();
  const StepStatus status = shared;
  if (status.ok()) {
    for (std::int32_t token = coop.thread_rank(); token < params.num_tokens; token += coop.size()) {
      const std::byte* sources[kMaxTopK];
      std::int32_t num_sources = 0;
      for_each_hop(params, token, [&](const Hop& hop) {
        sources[num_sources++] = landing_row(params, me, hop.rank, hop.row);
      });
      rows.sum(token, sources, num_sources);
    }
  }
  coop.sync();
  return status;
}

}  // namespace moe_ep::protocol
