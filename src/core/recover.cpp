// Going on after an error, without a lost rank or with its replacement.

#include <algorithm>

#include <moe_ep/a2a.hpp>

#include "comm/agree.hpp"
#include "core/communication_state.hpp"
#include "core/message.hpp"

namespace moe_ep::detail {
namespace {

RankMask checked_mask(const std::string& operation, const std::vector<int>& ranks, int rank,
                      int num_ranks) {
  require(std::is_sorted(ranks.begin(), ranks.end()) &&
              std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end(),
          operation, ": active_ranks must be ascending without repeats, got ", list_ranks(ranks));
  const RankMask mask = moe_a2a_active_rank_mask(ranks, num_ranks);
  require(mask.test(rank), operation, ": active_ranks must contain the own rank ", rank, ", got ",
          list_ranks(ranks));
  return mask;
}

}  // namespace

void CommunicationState::set_active_ranks(const std::vector<int>& ranks,
                                          std::optional<Stream> stream) {
  const char* op = "set_active_ranks";
  usable(op);
  if (round_.open) throw std::logic_error("set_active_ranks: no round may be open, got one");
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  const RankMask mask = checked_mask(op, sorted, bootstrap_.rank, bootstrap_.world_size);
  require(options_.enable_rank_mask || mask == RankMask::first(bootstrap_.world_size), op,
          ": leaving ranks out needs enable_rank_mask=True at construction, got ",
          list_ranks(sorted));
  default_mask_ = mask;
  backend_->set_default_mask(mask, stream_for(stream));
}

void CommunicationState::recover(const std::vector<int>& active_ranks,
                                 std::shared_ptr<CommBackend> comm) {
  const std::string op = options_.class_name + ".recover";
  if (workspace_ == nullptr || !workspace_->memory->mapped()) {
    throw std::logic_error(op +
                           ": the instance must have its workspace, got a call after "
                           "destroy() or checkpoint_prepare()");
  }
  require(comm != nullptr, op, ": comm_backend must be given, got none");
  Announcement own = announcement();
  // All are quiet once all have announced themselves.
  const auto failure = failure_of([&] {
    if (workspace_->failure || backend_->pending_failure()) backend_->abandon(workspace_->view());
    backend_->synchronize();
    own.epoch = backend_->last_epoch(workspace_->view());
  });
  if (failure) own.failure = OwnFailure{false, *failure};
  own.workspace_id = workspace_->memory->id();
  regroup(std::move(own), active_ranks, std::move(comm));
  counters_.recoveries.add(1);
}

std::unique_ptr<CommunicationState> CommunicationState::rejoin(
    const BootstrapConfig& bootstrap, const MoEEpCommParams& params, const Options& options,
    std::optional<OwnFailure> own_failure, const std::vector<int>& active_ranks,
    std::shared_ptr<CommBackend> comm) {
  require(comm != nullptr, options.class_name, ".rejoin: comm_backend must be given, got none");
  std::unique_ptr<CommunicationState> state(new CommunicationState(bootstrap, params, options));
  Announcement own = state->announcement();
  own.failure = std::move(own_failure);
  if (!own.failure) own.failure = state->choose_device();
  if (!own.failure) {
    // A workspace of its own so far; the others' slices come with regroup().
    const auto failure = failure_of([&] {
      state->make_workspace(*self_comm(), {bootstrap.rank});
      state->make_backend();
    });
    if (failure) own.failure = OwnFailure{false, *failure};
  }
  state->regroup(std::move(own), active_ranks, std::move(comm));
  return state;
}

void CommunicationState::regroup(Announcement own, const std::vector<int>& active_ranks,
                                 std::shared_ptr<CommBackend> comm) {
  const std::string op = options_.class_name + ".recover";
  own.fields.emplace_back("active_ranks", list_ranks(active_ranks));
  RankMask mask;
  try {
    mask = checked_mask(op, active_ranks, bootstrap_.rank, bootstrap_.world_size);
    require(options_.enable_rank_mask || mask == RankMask::first(bootstrap_.world_size), op,
            ": leaving ranks out needs enable_rank_mask=True at construction, got ",
            list_ranks(active_ranks));
  } catch (const std::invalid_argument& error) {
    if (!own.failure) own.failure = OwnFailure{true, error.what()};
  }
  const auto all = agree(*comm, op, active_ranks, bootstrap_.rank, own);
  workspace_->torn = true;  // from the first change to the end of the last
  workspace_->memory->remap(*comm, active_ranks);
  const auto failure = failure_of([&] {
    backend_->share_device(workspace_->memory->ranks_on_device());
    backend_->set_default_mask(mask, std::nullopt);
    backend_->reset(workspace_->view(), last_epoch(all));
  });
  gather_outcomes(*comm, op, failure);  // everybody is armed
  workspace_->start_over();
  workspace_->comm = std::move(comm);
  drop_round();
  default_mask_ = mask;
}

}  // namespace moe_ep::detail
