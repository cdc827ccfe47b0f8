#include "chaos/rank_process.hpp"

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "chaos/chaos_step.hpp"
#include "chaos/strike.hpp"
#include "support/hooked_backend.hpp"
#include "support/resources.hpp"

namespace moe_ep::testing::chaos {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct ApplicationError {};

class RankProcess {
 public:
  RankProcess(int rank, const HostSuiteBackend& backend) : rank_(rank), backend_(backend) {}

  Reply run(const Command& command) {
    Reply reply;
    longest_ = {};
    try {
      obey(command);
      reply.outcome = Outcome::kDone;
    } catch (const MoEEpTimeoutError& error) {
      reply = failure(Outcome::kTimeout, error);
      for (const int peer : error.ranks())
        reply.named |= std::uint64_t{1} << peer;
      reply.in_combine = error.phase() == Phase::kCombine;
    } catch (const MoEEpMismatchError& error) {
      reply = failure(Outcome::kMismatch, error);
    } catch (const MoEEpError& error) {
      reply = failure(Outcome::kError, error);
    } catch (const std::invalid_argument& error) {
      reply = failure(Outcome::kBadArgument, error);
    } catch (const ApplicationError&) {
      reply.outcome = Outcome::kThrown;
    } catch (const std::exception& error) {
      reply = failure(Outcome::kFailed, error);
    }
    reply.call_ms = static_cast<std::int32_t>(longest_ / 1ms);
    const Resources resources = Resources::now();
    reply.num_fds = resources.num_fds;
    reply.num_mappings = resources.num_shared_mappings;
    return reply;
  }

 private:
  static Reply failure(Outcome outcome, const std::exception& error) {
    Reply reply;
    reply.outcome = outcome;
    std::strncpy(reply.text, error.what(), sizeof reply.text - 1);
    return reply;
  }

  void obey(const Command& command) {
    const std::vector<int> active = ranks_of(command.active);
    switch (command.verb) {
      case Verb::kCreate:
        comm_ = std::make_unique<HostAlltoAll>(place(), chaos_params(),
                                               config(join(command.group, active)));
        return;
      case Verb::kRejoin: {
        MoEEpCommParams params = chaos_params();
        if (command.wrong_params) params.top_k = kTopK - 1;
        comm_.reset();
        comm_ = HostAlltoAll::rejoin(place(), params, config(nullptr), active,
                                     join(command.group, active));
        return;
      }
      case Verb::kRecover:
        comm_->recover(active, recovery_group(command, active));
        return;
      case Verb::kStep:
        step(command);
        return;
      case Verb::kDestroy:
        comm_.reset();
        return;
    }
  }

  BootstrapConfig place() const { return {.world_size = kNumRanks, .rank = rank_}; }

  HostAlltoAllConfig config(std::shared_ptr<CommBackend> comm) const {
    HostAlltoAllConfig config;
    config.comm_backend = std::move(comm);
    config.timeout_sec = kTimeoutSec;
    config.enable_rank_mask = true;
    return backend_.configure(config);
  }

  std::shared_ptr<CommBackend> join(const char* path, const std::vector<int>& active) const {
    const auto place = std::find(active.begin(), active.end(), rank_) - active.begin();
    return std::make_shared<UnixSocketBackend>(path, static_cast<int>(place),
                                               static_cast<int>(active.size()), 20s);
  }

  std::shared_ptr<CommBackend> recovery_group(const Command& command,
                                              const std::vector<int>& active) const {
    auto group = join(command.group, active);
    if (command.fault != Fault::kKillInRecover) return group;
    constexpr std::uint64_t kNumCalls = 7;  // of a recover() of members that all stay
    const int last = 1 + static_cast<int>(command.fault_seed % kNumCalls);
    return std::make_shared<HookedBackend>(group, [last](int call) {
      if (call == last) ::raise(SIGKILL);
    });
  }

  void step(const Command& command) {
    const double fraction = static_cast<double>(mix(command.fault_seed) % 1000) / 1000;
    const std::chrono::milliseconds delay(static_cast<int>(100 * fraction));
    const GroupStep step = chaos_step(command.seed, command.active);
    StepRunner runner(backend_, *comm_, step);
    switch (command.fault) {
      case Fault::kKillBeforeDispatch:
        ::raise(SIGKILL);
        break;
      case Fault::kDelayBeforeDispatch:
        std::this_thread::sleep_for(delay);
        break;
      case Fault::kBadArgument:
        refused(step);
        break;
      case Fault::kMismatchWidth:
      case Fault::kMismatchTokens:
        mismatched(step, command.fault);
        return;
      default:
        break;
    }
    phase(command, dispatch_time_, fraction, Fault::kKillInDispatch, Fault::kStopInDispatch,
          Fault::kExitInDispatch, [&] { runner.send(); });
    runner.check_received();
    switch (command.fault) {
      case Fault::kKillBetween:
        ::raise(SIGKILL);
        break;
      case Fault::kStopBetween:
        ::raise(SIGSTOP);
        break;
      case Fault::kExitBetween:
        std::exit(0);  // NOLINT(concurrency-mt-unsafe): no other thread
      case Fault::kThrowBetween:
        throw ApplicationError();
      case Fault::kDelayBetween:
        std::this_thread::sleep_for(delay);
        break;
      default:
        break;
    }
    phase(command, combine_time_, fraction, Fault::kKillInCombine, Fault::kStopInCombine,
          Fault::kNumFaults, [&] { runner.combine(); });
  }

  // One phase, timed, in which the fault strikes if it is one of these.
  void phase(const Command& command, Clock::duration& expected, double fraction, Fault kill,
             Fault stop, Fault exit, const std::function<void()>& call) {
    if (command.fault == exit) strike_with_exit(0, fraction, expected, [&] { timed(call); });
    if (command.fault == kill) {
      strike_with_signal(SIGKILL, fraction, expected, [&] { timed(call); });
    } else if (command.fault == stop) {
      strike_with_signal(SIGSTOP, fraction, expected, [&] { timed(call); });
    } else {
      expected = timed(call);
    }
  }

  Clock::duration timed(const std::function<void()>& call) {
    struct Watch {
      Clock::duration& longest;
      Clock::time_point start = Clock::now();
      ~Watch() { longest = std::max(longest, Clock::now() - start); }
    } watch{longest_};
    call();
    return Clock::now() - watch.start;
  }

  // A dispatch that must be refused before anything is sent.
  void refused(const GroupStep& like) {
    GroupStep step = like;
    step.top_k = kTopK - 1;
    for (auto& ids : step.ids)
      ids.resize(ids.size() / kTopK * static_cast<std::size_t>(step.top_k));
    try {
      StepRunner(backend_, *comm_, step).send();
    } catch (const std::invalid_argument&) {
      return;
    }
    throw std::runtime_error("a dispatch of another top_k must be refused, got a result");
  }

  // A step that the peers do not expect.
  void mismatched(const GroupStep& like, Fault fault) {
    GroupStep step = like;
    StepOptions options;
    if (fault == Fault::kMismatchWidth) {
      options.width = kHidden / 2;
    } else {
      step.tokens_per_rank += step.tokens_per_rank < kMaxTokens ? 1 : -1;
      auto& own = step.num_tokens[static_cast<std::size_t>(rank_)];
      own = std::min(own, step.tokens_per_rank);
    }
    StepRunner runner(backend_, *comm_, step, options);
    timed([&] { runner.send(); });
  }

  const int rank_;
  const HostSuiteBackend& backend_;
  std::unique_ptr<HostAlltoAll> comm_;
  Clock::duration dispatch_time_ = 100us;
  Clock::duration combine_time_ = 100us;
  Clock::duration longest_{};
};

}  // namespace

void serve_rank(int rank, int control, const HostSuiteBackend& backend) {
  RankProcess process(rank, backend);
  while (const auto command = receive<Command>(control, 10min)) {
    if (!send(control, process.run(*command)) || command->verb == Verb::kDestroy) return;
  }
}

}  // namespace moe_ep::testing::chaos
