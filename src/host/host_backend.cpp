// The host backend: the protocol's own functions, run by one thread or by a team.

#include <algorithm>

#include "backend/platform.hpp"
#include "host/float_environment.hpp"
#include "host/host_memory.hpp"
#include "host/rows.hpp"
#include "host/team.hpp"
#include "protocol/one_sided.hpp"
#include "protocol/transport/counted.hpp"
#include "protocol/transport/fence.hpp"
#include "protocol/transport/lamport_combine.hpp"
#include "protocol/transport/lamport_dispatch.hpp"

namespace moe_ep {
namespace host {
namespace {

using protocol::CombineParams;
using protocol::DispatchParams;
using protocol::FenceTransport;
using protocol::StepStatus;

// Below this many bytes a step is done before workers are awake.
constexpr std::int64_t kMinTeamBytes = 256 << 10;

// How the rows of a phase that puts `bytes` are copied.
HostMemory::Copy row_copy([[maybe_unused]] std::int64_t bytes) {
#if defined(__SANITIZE_THREAD__)
  return kernels().copy;  // the race detector does not see streaming stores
#else
  return bytes >= kStreamingBytes ? kernels().copy_streaming : kernels().copy;
#endif
}

Transport transport_of(const DispatchParams& params) {
  return static_cast<Transport>(params.signature.fields[protocol::kTransport]);
}

class HostBackend final : public Backend {
 public:
  explicit HostBackend(int num_threads) : team_(num_threads) {}

  StepStatus dispatch(const DispatchParams& params, Stream) override {
    std::int64_t row_bytes = 0;
    for (int payload = 0; payload < params.num_payloads; ++payload) {
      row_bytes += params.row_bytes(payload);
    }
    const std::int64_t bytes = row_bytes * params.num_tokens;
    const std::int64_t visits = std::min(params.top_k, params.workspace.layout.num_ranks);
    const HostMemory::Copy copy = row_copy(bytes * visits);
    return run(bytes, [&](auto& coop, StepStatus& shared) {
      HostMemory memory{copy};
      switch (transport_of(params)) {
        case Transport::kLamport:
          return protocol::lamport_dispatch(coop, memory, params, shared);
        case Transport::kCounted:
          return protocol::counted_dispatch(coop, memory, params, shared);
        default:
          return protocol::dispatch<FenceTransport>(coop, memory, params, shared);
      }
    });
  }

  StepStatus combine(const CombineParams& params, const CombineOutput& output, Stream) override {
    clear_scale_padding(params, output);
    return run(params.row_bytes * params.num_tokens, [&](auto& coop, StepStatus& shared) {
      HostMemory memory{kernels().copy};
      HostRows rows(kernels(), params, output);
      switch (params.transport) {
        case Transport::kLamport:
          return protocol::lamport_combine(coop, memory, rows, params, shared);
        case Transport::kCounted:
          return protocol::counted_combine(coop, memory, rows, params, shared);
        default:
          return protocol::combine<FenceTransport>(coop, memory, rows, params, shared);
      }
    });
  }

  void sanitize(const protocol::Workspace& workspace, std::int32_t* ids,
                std::int32_t tokens_per_rank, std::int32_t top_k, std::int32_t invalid,
                Stream) override {
    protocol::mark_empty_rows(ids, workspace.recv_counts(), workspace.layout.num_ranks,
                              tokens_per_rank, top_k, invalid, 0, 1);
  }

  void reset(const protocol::Workspace& workspace, protocol::Epoch epoch,
             std::optional<Stream>) override {
    protocol::reset_slice(workspace, epoch);
  }
  protocol::Epoch last_epoch(const protocol::Workspace& workspace) override {
    return workspace.header()->epoch;
  }

  void share_device(int) override {}
  // Steps have ended when they return, and every one of them is told who takes part.
  void set_default_mask(const RankMask&, std::optional<Stream>) override {}
  std::optional<StepStatus> pending_failure() const override { return std::nullopt; }
  void synchronize() override {}
  void abandon(const protocol::Workspace&) override {}

 private:
  // Runs `phase(coop, shared)` on as many threads as `bytes` are worth.
  template <class PhaseFunction>
  StepStatus run(std::int64_t bytes, PhaseFunction&& phase) {
    StepStatus shared;
    if (team_.num_threads() == 1 || bytes < kMinTeamBytes) {
      const DefaultFloatEnvironment environment;
      SoloCoop coop;
      return phase(coop, shared);
    }
    StepStatus result;
    SpinBarrier barrier(team_.num_threads());
    team_.run([&](int thread) {
      const DefaultFloatEnvironment environment;
      TeamCoop coop(thread, team_.num_threads(), barrier);
      const StepStatus status = phase(coop, shared);
      if (thread == 0) result = status;
    });
    return result;
  }

  Team team_;
};

class HostPlatform final : public Platform {
 public:
  std::string explain() const override { return {}; }
  bool has(Transport) const override { return true; }
  // Between cores flags cost next to nothing, and copies out of landing rows do not.
  std::int64_t default_lamport_tokens() const override { return 1; }
  Device choose_device(std::optional<int>, int) const override { return Device{}; }
  std::shared_ptr<SymmetricWorkspace> create_memory(
      CommBackend& comm, std::size_t bytes, const PlatformOptions&, int num_ranks,
      const std::vector<int>& members) const override {
    return SymmetricWorkspace::create_host(comm, bytes, num_ranks, members);
  }
  std::shared_ptr<protocol::FailureRecord> create_record(Device) const override { return nullptr; }
  std::unique_ptr<Backend> create_backend(const PlatformOptions& options,
                                          std::shared_ptr<protocol::FailureRecord>) const override {
    return std::make_unique<HostBackend>(options.num_threads);
  }
};

}  // namespace
}  // namespace host

const Platform& host_platform() {
  static const host::HostPlatform platform;
  return platform;
}

}  // namespace moe_ep
