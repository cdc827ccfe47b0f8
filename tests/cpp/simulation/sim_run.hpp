// A run: some steps of some ranks, each rank a fiber that goes on as soon as the protocol lets it,
// everything that arrives checked.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "simulation/host_scheme.hpp"
#include "simulation/sim_memory.hpp"
#include "support/fake_world.hpp"

namespace moe_ep::testing::simulation {

struct RunOptions {
  std::vector<Transport> transports;  // drawn from for every step
  int num_steps = 4;
  protocol::Epoch epoch = 0;
  bool masked = false;             // one rank of three or four takes no part
  bool lost = false;               // one rank stops between two phases
  std::uint64_t timeout = 60'000;  // ticks of the scheduler
};

// What went wrong; nothing if all was as it must be.
using Finding = std::optional<std::string>;

template <Plant P>
struct SimRows {
  SimMemory<P>& memory;
  const protocol::CombineParams& params;
  std::map<std::int32_t, std::vector<std::uint32_t>>& results;
  std::map<std::int32_t, std::vector<std::byte>> staged = {};

  void place(std::byte* to, const std::byte* from) { memory.copy_row(to, from, params.row_bytes); }
  std::byte* staging(std::int32_t index) {
    auto& row = staged[index];
    row.resize(static_cast<std::size_t>(params.row_bytes));
    return row.data();
  }
  void sum(std::int32_t token, const std::byte* const* rows, std::int32_t num_rows) {
    auto& result = results[token];
    result.assign(static_cast<std::size_t>(params.elements), 0);
    for (std::int32_t row = 0; row < num_rows; ++row) {
      for (std::size_t word = 0; word < result.size(); ++word)
        result[word] += memory.load_row_word(rows[row] + 4 * word);
    }
  }
};

// @tparam Scheme what orders the words of Lamport steps: HostScheme or DeviceScheme
template <Plant P, class Scheme>
class SimRun {
 public:
  SimRun(std::uint64_t seed, const RunOptions& options)
      : options_(options),
        random_(seed),
        num_ranks_(options.masked ? 3 + int(random_() % 2) : 2 + int(random_() % 3)),
        scheduler_(seed),
        model_(scheduler_, num_ranks_),
        group_(num_ranks_, kTokens, 4 * (kWords + kTopK), 4 * kWords, 0, options.epoch,
               all_regions(kTokens, kTopK, kWords)) {
    for (int rank = 0; rank < num_ranks_; ++rank)
      Scheme::reset(group_.workspace(rank), options.epoch);
    RankMask active = RankMask::first(num_ranks_);
    if (options.masked) active.reset(int(random_() % unsigned(num_ranks_)));
    const auto members = members_of(active);
    if (options.lost) {
      lost_ = members[random_() % members.size()];
      lost_after_ = int(random_() % unsigned(2 * options.num_steps));
    }
    for (int step_idx = 0; step_idx < options.num_steps; ++step_idx) {
      const FakeStep step{.tokens_per_rank = 1 + int(random_() % kTokens),
                          .num_experts = num_ranks_,
                          .top_k = kTopK,
                          .num_words = 1 + int(random_() % kWords),
                          .active = active,
                          .timeout_ns = options.timeout,
                          .transport = options.transports[random_() % options.transports.size()]};
      worlds_.push_back({group_, step, random_tokens(num_ranks_, step, step_idx + 1u, random_)});
    }
    for (const int rank : members)
      scheduler_.spawn([this, rank] { run_rank(rank); });
  }

  Finding run() {
    scheduler_.run();
    return finding_;
  }

 private:
  static constexpr int kTokens = 2;
  static constexpr int kTopK = 2;
  static constexpr int kWords = 6;

  void find(int rank, std::size_t step, const std::string& what) {
    std::ostringstream text;
    text << "rank " << rank << " of " << num_ranks_ << ", step " << step << " ("
         << transport_name(worlds_[step].step.transport) << "): " << what;
    if (!finding_) finding_ = text.str();
  }

  void run_rank(int rank) {
    SimMemory<P> memory(scheduler_, model_, rank);
    for (std::size_t step = 0; step < worlds_.size() && !finding_; ++step) {
      if (is_lost(rank, 2 * step)) break;
      if (!went_well(rank, step, Phase::kDispatch, dispatch(rank, step, memory))) break;
      check_dispatched(rank, step, memory);
      if (is_lost(rank, 2 * step + 1)) break;
      if (!went_well(rank, step, Phase::kCombine, combine(rank, step, memory))) break;
    }
    model_.finish(rank);
  }

  bool is_lost(int rank, std::size_t phase) const {
    return rank == lost_ && static_cast<int>(phase) == lost_after_;
  }

  bool went_well(int rank, std::size_t step, Phase phase, const protocol::StepStatus& status) {
    const std::size_t index = 2 * step + (phase == Phase::kCombine ? 1 : 0);
    const bool must_fail = lost_ >= 0 && static_cast<int>(index) == lost_after_;
    RankMask missing;
    if (must_fail) missing.set(lost_);
    if (must_fail ? status.result != protocol::StepResult::kTimeout || status.missing != missing
                  : !status.ok()) {
      std::ostringstream text;
      text << phase_name(phase) << " ended with " << static_cast<int>(status.result) << ", missing";
      status.missing.for_each([&](int peer) { text << ' ' << peer; });
      find(rank, step, text.str());
    }
    return status.ok();
  }

  protocol::StepStatus dispatch(int rank, std::size_t step, SimMemory<P>& memory) {
    FakeWorld& world = worlds_[step];
    auto& params = dispatched_[rank];
    params = group_.dispatch_params(rank, world.step, world.tokens[std::size_t(rank)]);
    FakeCoop coop;
    protocol::StepStatus shared;
    switch (world.step.transport) {
      case Transport::kLamport:
        return Scheme::dispatch(memory, params);
      case Transport::kCounted:
        return protocol::counted_dispatch(coop, memory, params, shared);
      default:
        if (step > 0 && worlds_[step - 1].step.transport == Transport::kLamport) {
          shared = Scheme::drain(memory, params);
          if (!shared.ok()) return shared;
        }
        return protocol::dispatch<protocol::FenceTransport>(coop, memory, params, shared);
    }
  }

  // Calls `visit(src, token, row)` for every token that came to `rank`.
  template <class Visit>
  void for_each_arrival(int rank, std::size_t step, Visit&& visit) {
    const FakeWorld& world = worlds_[step];
    world.step.active.for_each([&](int src) {
      int next = 0;
      for (const int token : world.sent(src, rank))
        visit(src, token, world.step.transport == Transport::kLamport ? token : next++);
    });
  }

  void check_dispatched(int rank, std::size_t step, SimMemory<P>& memory) {
    const FakeWorld& world = worlds_[step];
    const auto& params = dispatched_[rank];
    for_each_arrival(rank, step, [&](int src, int token, int row) {
      const auto& words = world.tokens[std::size_t(src)].rows[std::size_t(token)];
      for (int word = 0; word < world.step.num_words; ++word) {
        if (memory.load_row_word(params.row(rank, 0, src, row) + 4 * word) !=
            words[std::size_t(word)])
          find(rank, step, "a word of token " + std::to_string(token) + " is wrong");
      }
      for (int k = 0; k < kTopK; ++k) {
        const std::int64_t given =
            world.tokens[std::size_t(src)].ids[std::size_t(token)][std::size_t(k)];
        const bool valid = owner_of(given, world.step.num_experts, num_ranks_) >= 0;
        const auto id =
            static_cast<std::int32_t>(memory.load_row_word(params.row(rank, 1, src, row) + 4 * k));
        if (id != (valid ? given : world.step.invalid_expert_id))
          find(rank, step, "an id of token " + std::to_string(token) + " is wrong");
      }
    });
    for (int src = 0; src < num_ranks_; ++src) {
      const auto count = world.step.active.test(src) ? world.sent(src, rank).size() : 0;
      if (params.workspace.recv_counts()[src] != static_cast<int>(count))
        find(rank, step, "a count is wrong");
    }
  }

  protocol::StepStatus combine(int rank, std::size_t step, SimMemory<P>& memory) {
    FakeWorld& world = worlds_[step];
    const auto& tokens = world.tokens[std::size_t(rank)];
    auto params = group_.combine_params(rank, world.step, static_cast<int>(tokens.ids.size()));
    // Experts answer outside the workspace.
    const auto row_words = static_cast<std::size_t>(world.step.num_words);
    std::vector<std::uint32_t> answers(
        static_cast<std::size_t>(num_ranks_ * world.step.tokens_per_rank) * row_words);
    for_each_arrival(rank, step, [&](int src, int token, int row) {
      const auto first = static_cast<std::size_t>(src * world.step.tokens_per_rank + row);
      for (std::size_t word = 0; word < row_words; ++word) {
        answers[first * row_words + word] =
            FakeWorld::expert(rank, world.tokens[std::size_t(src)].rows[std::size_t(token)][word]);
      }
    });
    params.expert_output = reinterpret_cast<const std::byte*>(answers.data());
    params.expert_output_stride = params.row_bytes;
    std::map<std::int32_t, std::vector<std::uint32_t>> results;
    SimRows<P> rows{memory, params, results};
    const auto status = run_combine(world.step.transport, rows, params, memory);
    if (!status.ok()) return status;
    for (std::size_t token = 0; token < tokens.ids.size(); ++token) {
      std::vector<std::uint32_t> want(row_words);
      world.step.active.for_each([&](int dst) {
        const auto sent = world.sent(rank, dst);
        if (std::find(sent.begin(), sent.end(), static_cast<int>(token)) == sent.end()) return;
        for (std::size_t word = 0; word < row_words; ++word)
          want[word] += FakeWorld::expert(dst, tokens.rows[token][word]);
      });
      if (results[static_cast<std::int32_t>(token)] != want)
        find(rank, step, "the sum of token " + std::to_string(token) + " is wrong");
    }
    return status;
  }

  protocol::StepStatus run_combine(Transport transport, SimRows<P>& rows,
                                   const protocol::CombineParams& params, SimMemory<P>& memory) {
    FakeCoop coop;
    protocol::StepStatus shared;
    switch (transport) {
      case Transport::kLamport:
        return Scheme::combine(memory, rows, params);
      case Transport::kCounted:
        return protocol::counted_combine(coop, memory, rows, params, shared);
      default:
        return protocol::combine<protocol::FenceTransport>(coop, memory, rows, params, shared);
    }
  }

  RunOptions options_;
  std::mt19937 random_;
  int num_ranks_;
  Scheduler scheduler_;
  Model model_;
  FakeGroup group_;
  int lost_ = -1;
  int lost_after_ = -1;
  std::vector<FakeWorld> worlds_;
  std::map<int, protocol::DispatchParams> dispatched_;
  Finding finding_;
};

}  // namespace moe_ep::testing::simulation
