/// @file
/// MoEEpCommunication: one expert-parallel group's dispatch and combine.
///
/// @code
/// moe_ep::HostAlltoAll comm({.world_size = 4, .rank = r},
///                           {.num_experts = 64, .top_k = 8, .max_tokens_per_rank = 128,
///                            .hidden_size = 7168},
///                           {.comm_backend = backend});
/// auto received = comm.dispatch({.hidden_states = x, .topk_ids = ids, .topk_weights = weights});
/// // experts read received.hidden_states and write their rows into:
/// auto rows = comm.get_combine_input_buffer(moe_ep::kBFloat16);
/// comm.combine(rows, out);
/// @endcode
///
/// Letters: R ranks, T = tokens_per_rank of the step, K = top_k, H = hidden_size, n = local tokens.
///
/// Threads: one instance belongs to one thread at a time; instances of different ranks may live in
/// one process. On the host, dispatch and combine return when the step's data is there. On GPUs
/// they enqueue: results are there in stream order, and steps may be captured into CUDA graphs. A
/// failed step leaves rubbish in its results and says so in the next call, check() or
/// synchronize().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <moe_ep/config.hpp>
#include <moe_ep/error.hpp>
#include <moe_ep/export.hpp>
#include <moe_ep/rank_mask.hpp>
#include <moe_ep/stats.hpp>
#include <moe_ep/tensor.hpp>

namespace moe_ep {

/// A further tensor that travels row by row with the tokens.
struct NamedPayload {
  std::string name;
  TensorView tensor;  ///< [n, *], any dtype
};

/// What one rank sends in a step. Last dimensions are contiguous, row strides free.
struct DispatchInputs {
  TensorView hidden_states;  ///< [n, w], any dtype whose bytes fit
  TensorView topk_ids;       ///< [n, K] int32 or int64; ids outside [0, E) are void
  std::optional<TensorView> topk_weights = std::nullopt;         ///< [n, K]; all ranks or none
  std::optional<TensorView> hidden_states_scale = std::nullopt;  ///< [n, *]; all ranks or none
  std::optional<std::int64_t> runtime_max_tokens_per_rank = std::nullopt;  ///< T, at least every
  ///< rank's n and equal on all ranks; nullopt = max_tokens_per_rank
  std::optional<TensorView> eplb_local_stats = std::nullopt;  ///< int32 [eplb_stats_num_experts]
  std::optional<RankMask> active_rank_mask = std::nullopt;    ///< default: set_active_ranks()
  std::vector<NamedPayload> extra_payloads = {};              ///< at most 4
  /// Raw cudaStream_t to enqueue on; nullopt = BootstrapConfig::stream. Unused on CPUs.
  std::optional<std::uintptr_t> stream = std::nullopt;
};

/// What arrived: views into the workspace, valid until the matching combine.
///
/// Rows are rank-major: block `src` holds the T rows of rank src, its tokens first and in ascending
/// order; after a Lamport step token t lies in row t of the block. Rows without a token have every
/// id equal to invalid_expert_id; their other payloads are unspecified.
struct MoEEpDispatchResult {
  TensorView hidden_states;                                      ///< [R*T, w]
  TensorView topk_ids;                                           ///< [R*T, K] int32
  std::optional<TensorView> topk_weights = std::nullopt;         ///< [R*T, K]
  std::int64_t tokens_per_rank = 0;                              ///< T
  std::optional<TensorView> hidden_states_scale = std::nullopt;  ///< [R*T, *]
  std::optional<TensorView> eplb_gathered_stats = std::nullopt;  ///< int32 [R, E']
  TensorView recv_counts;                                        ///< int32 [R], tokens per source
  std::vector<NamedPayload> extra_payloads = {};                 ///< [R*T, *]
};

namespace detail {
class CommunicationState;
}

/// Base of the backend classes. Obtain one by its constructor or by create_communication().
class MOE_EP_API MoEEpCommunication {
 public:
  /// Destroys; see destroy().
  virtual ~MoEEpCommunication();
  MoEEpCommunication(const MoEEpCommunication&) = delete;
  MoEEpCommunication& operator=(const MoEEpCommunication&) = delete;

  /// Sends each token once to every rank that owns one of its experts. Collective.
  /// @throws std::invalid_argument bad argument, before anything is sent
  /// @throws std::logic_error a round is open (also another instance's on a shared workspace)
  /// @throws MoEEpTimeoutError, MoEEpMismatchError and then refuses steps until recover()
  MoEEpDispatchResult dispatch(const DispatchInputs& inputs);

  /// Sums the rows that came of each local token into `output`, in float32, ascending rank order,
  /// one rounding at the end. Collective; closes the round.
  /// @param expert_output [R*T, H] or [R, T, H] in token_dtype; rows without a token are not read.
  ///   The tensor of get_combine_input_buffer() is used in place.
  /// @param output [n, H] contiguous, token_dtype
  /// @param active_rank_mask must equal the dispatch's, if given
  /// @param stream as in DispatchInputs
  void combine(const TensorView& expert_output, const TensorView& output,
               const std::optional<RankMask>& active_rank_mask = std::nullopt,
               std::optional<std::uintptr_t> stream = std::nullopt);

  /// [R*T, H] workspace view for the experts' output; valid between dispatch and combine.
  TensorView get_combine_input_buffer(DType dtype);

  /// Number of tokens that combine() returns; valid between dispatch and combine.
  std::int64_t num_local_tokens() const;

  /// Releases the workspace share. Local, idempotent. An open round is abandoned without waiting
  /// for a peer. On GPUs the last instance on a workspace waits for the enqueued steps of finished
  /// rounds, which timeout_sec bounds.
  void destroy() noexcept;

  /// Throws the pending error of an earlier step, if any. Does not wait.
  void check() const;
  /// Waits for the enqueued steps, then check().
  void synchronize() const;

  /// The mask of `ranks`. @throws std::invalid_argument for a rank outside [0, R)
  RankMask active_rank_mask(const std::vector<int>& ranks) const;
  /// Default mask of later steps, also of replays of captured ones: local, between rounds, in
  /// stream order, the same on all live ranks.
  void set_active_ranks(const std::vector<int>& ranks,
                        std::optional<std::uintptr_t> stream = std::nullopt);

  /// Collective over exactly `active_ranks` (ascending; comm's rank i is active_ranks[i]): maps
  /// replaced members' memory, re-arms the workspace, clears errors, sets the default mask. The
  /// instance keeps `comm_backend` for later checkpoints, as it does in checkpoint_restore().
  void recover(const std::vector<int>& active_ranks, std::shared_ptr<CommBackend> comm_backend);

  /// Collective, between rounds: frees the physical memory, keeps the addresses.
  void checkpoint_prepare();
  /// Collective over the same ranks: new memory at the old addresses.
  void checkpoint_restore(std::shared_ptr<CommBackend> comm_backend);

  /// Transport of the last dispatch; nullopt before the first.
  std::optional<Transport> last_transport() const noexcept;
  /// Counts of this instance's steps and failures. From any thread, at any time; while a step ends
  /// in another thread, some counts may have it and others not yet.
  CommunicationStats stats() const noexcept;
  bool lamport_enabled() const noexcept;
  std::int64_t lamport_max_tokens() const noexcept;

  const char* backend_name() const noexcept;
  /// Where tensors lie.
  Device device() const noexcept;
  const BootstrapConfig& bootstrap() const noexcept;
  const MoEEpCommParams& params() const noexcept;
  int timeout_sec() const noexcept;
  /// Bytes of this rank's slice, as plan_workspace() says.
  std::int64_t workspace_bytes() const noexcept;
  /// This rank's slice of the workspace; null once destroyed.
  std::byte* slice() const noexcept;
  /// Keeps the mapped memory alive for views that outlive the instance.
  std::shared_ptr<const void> workspace_handle() const;

 protected:
  explicit MoEEpCommunication(std::unique_ptr<detail::CommunicationState> state);

 private:
  std::unique_ptr<detail::CommunicationState> state_;
};

/// Any backend's options.
using BackendConfig = std::variant<HostAlltoAllConfig, NVLinkOneSidedConfig, CakeAlltoAllConfig,
                                   NVLinkTwoSidedConfig>;

/// A new instance of the backend whose options are passed. Collective.
MOE_EP_API std::unique_ptr<MoEEpCommunication> create_communication(
    const BootstrapConfig& bootstrap, const MoEEpCommParams& params, const BackendConfig& config);

/// The same by name, with default options; "auto" takes the best backend that every rank supports.
/// @throws std::out_of_range unknown name; the text lists the known ones
MOE_EP_API std::unique_ptr<MoEEpCommunication> create_communication(
    const BootstrapConfig& bootstrap, const MoEEpCommParams& params, const std::string& backend,
    std::shared_ptr<CommBackend> comm_backend = nullptr);

/// Takes part in the first collective of a construction that this rank cannot go through with, and
/// throws; the other ranks' constructors throw alike, naming this rank and `reason`. For frontends
/// that check arguments of their own.
[[noreturn]] MOE_EP_API void refuse_construction(const BootstrapConfig& bootstrap,
                                                 CommBackend& comm_backend,
                                                 const std::string& class_name,
                                                 const std::string& reason);

using CommunicationFactory = std::function<std::unique_ptr<MoEEpCommunication>(
    const BootstrapConfig&, const MoEEpCommParams&, std::shared_ptr<CommBackend>)>;

/// Adds a backend to create_communication(). @throws std::invalid_argument if the name is taken
MOE_EP_API void register_communication(const std::string& name, CommunicationFactory factory);

/// Registered names, ascending.
MOE_EP_API std::vector<std::string> available_communication_backends();

}  // namespace moe_ep
