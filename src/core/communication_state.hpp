// CommunicationState: one instance, i.e. its options, its share of a workspace and its round.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <moe_ep/communication.hpp>

#include "backend/backend.hpp"
#include "core/agreement.hpp"
#include "core/counters.hpp"
#include "core/options.hpp"
#include "core/step.hpp"
#include "core/workspace_cache.hpp"

namespace moe_ep::detail {

// Between dispatch and combine.
struct Round {
  bool open = false;
  std::int32_t num_tokens = 0;
  std::int32_t tokens_per_rank = 0;
  RankMask active;
  Transport transport = Transport::kFence;
  Traffic traffic;
};

class CommunicationState {
 public:
  // Collective: makes or joins the workspace, or throws alike on every rank.
  static std::unique_ptr<CommunicationState> create(const BootstrapConfig& bootstrap,
                                                    const MoEEpCommParams& params,
                                                    const Options& options,
                                                    std::optional<OwnFailure> own_failure);
  // Collective over `active_ranks`, of which all but the joining ones call recover().
  static std::unique_ptr<CommunicationState> rejoin(const BootstrapConfig& bootstrap,
                                                    const MoEEpCommParams& params,
                                                    const Options& options,
                                                    std::optional<OwnFailure> own_failure,
                                                    const std::vector<int>& active_ranks,
                                                    std::shared_ptr<CommBackend> comm);
  ~CommunicationState() { destroy(); }

  MoEEpDispatchResult dispatch(const DispatchInputs& inputs);
  void combine(const TensorView& expert_output, const TensorView& output,
               const std::optional<RankMask>& mask, std::optional<Stream> stream);
  TensorView combine_input_buffer(DType dtype);
  std::int64_t num_local_tokens();
  void destroy() noexcept;
  void check();
  void synchronize();
  void set_active_ranks(const std::vector<int>& ranks, std::optional<Stream> stream);
  void recover(const std::vector<int>& active_ranks, std::shared_ptr<CommBackend> comm);
  void checkpoint_prepare();
  void checkpoint_restore(std::shared_ptr<CommBackend> comm);

  const BootstrapConfig& bootstrap() const { return bootstrap_; }
  const MoEEpCommParams& params() const { return params_; }
  const Options& options() const { return options_; }
  Device device() const { return device_; }
  std::optional<Transport> last_transport() const { return last_transport_; }
  CommunicationStats stats() const { return counters_.read(); }
  std::int64_t slice_bytes() const { return slice_bytes_; }
  // Largest T of a Lamport step; 0: no step takes Lamport.
  std::int64_t lamport_max_tokens() const { return lamport_max_tokens_; }
  std::byte* slice() const {
    return workspace_ == nullptr ? nullptr : workspace_->memory->slice(bootstrap_.rank);
  }
  std::shared_ptr<const void> workspace_handle() const;

 private:
  CommunicationState(const BootstrapConfig& bootstrap, const MoEEpCommParams& params,
                     const Options& options);

  Announcement announcement() const;
  // Collective over `members`: a workspace of this instance's own.
  void make_workspace(CommBackend& comm, const std::vector<int>& members);
  void make_backend();
  std::optional<OwnFailure> choose_device();
  PlatformOptions platform_options() const;
  void note_layout();
  void join_workspace(std::shared_ptr<CommBackend> comm, const std::vector<Announcement>& all);
  // What recover() and rejoin() have in common: maps the active ranks' memory and starts over.
  void regroup(Announcement own, const std::vector<int>& active_ranks,
               std::shared_ptr<CommBackend> comm);
  // Throws unless a step may begin or go on.
  SharedWorkspace& usable(const char* operation);
  // Makes the failure that a device has reported since the last look the workspace's. Throws it.
  void raise_pending_failure();
  void require_open_round(const char* operation) const;

  // Holds the instance for one call. A second caller is refused; a destroy() that comes meanwhile
  // is carried out when the call ends.
  class Call {
   public:
    Call(CommunicationState& state, const char* operation);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CommunicationState& state_;
  };
  void release() noexcept;
  void end_steps(bool abandon) noexcept;
  // Before a step of `active`: waits until none of them is still in a round that destroy() cut
  // short.
  void finish_abandoned_round(SharedWorkspace& workspace, const RankMask& active, Stream stream);
  RankMask mask_for(const char* operation, const std::optional<RankMask>& mask) const;
  Stream stream_for(std::optional<Stream> stream) const;
  std::uint64_t timeout_ns() const;
  // Forgets the round, if there is one, without its combine.
  void drop_round() noexcept;
  // Closes the round, keeps the failure for later calls and throws it.
  [[noreturn]] void fail(const protocol::StepStatus& status);

  const BootstrapConfig bootstrap_;
  const MoEEpCommParams params_;
  Options options_;
  Device device_;
  std::int64_t slice_bytes_ = 0;
  std::int64_t lamport_max_tokens_ = 0;
  std::shared_ptr<SharedWorkspace> workspace_;  // null once destroyed
  std::unique_ptr<Backend> backend_;
  RankMask default_mask_;
  Round round_;
  Counters counters_;
  PayloadNames payload_names_;  // of the last dispatch

  std::mutex call_mutex_;
  bool in_call_ = false;         // guarded by call_mutex_
  bool destroy_wanted_ = false;  // guarded by call_mutex_
  std::optional<Transport> last_transport_;
};

// The group without which R = 1 gets by.
std::shared_ptr<CommBackend> self_comm();

}  // namespace moe_ep::detail
