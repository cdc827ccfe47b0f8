// Going on after an error, without a lost rank or with its replacement.

#include <algorithm>

#include <moe_ep/a2a.hpp>

#include "comm/agree.hpp"
#include "core/communication_state.hpp"
#include "core/message.hpp"
#include "protocol/one_sided.hpp"

namespace moe_ep::detail {
namespace {

RankMask checked_mask(const char* operation, const std::vector<int>& ranks, int rank,
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

void CommunicationState::set_active_ranks(const std::vector<int>& ranks) {
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
}

void CommunicationState::recover(const std::vector<int>& active_ranks,
                                 std::shared_ptr<CommBackend> comm) {
  const std::string op = options_.class_name + ".recover";
  if (workspace_ == nullptr || !workspace_->memory->mapped()) {
    throw std::logic_error(op + ": the instance must have its workspace, got a call after "
                                "destroy() or checkpoint_prepare()");
  }
  Announcement own = announcement();
  own.workspace_id = workspace_->memory->id();
  own.epoch = workspace_->view().header()->epoch;
  RankMask mask;
  try {
    mask = checked_mask(op.c_str(), active_ranks, bootstrap_.rank, bootstrap_.world_size);
    require(options_.enable_rank_mask || mask == RankMask::first(bootstrap_.world_size), op,
            ": leaving ranks out needs enable_rank_mask=True at construction, got ",
            list_ranks(active_ranks));
  } catch (const std::invalid_argument& error) {
    own.failure = OwnFailure{true, error.what()};
  }
  const auto all = agree(*comm, op, active_ranks, bootstrap_.rank, own);
  workspace_->memory->remap(*comm, active_ranks);  // pairs with create_host in rejoin()
  protocol::reset_slice(workspace_->view(), last_epoch(all));
  gather_outcomes(*comm, options_.class_name, std::nullopt);  // everybody is armed
  workspace_->open_round = nullptr;
  round_ = {};
  workspace_->failure.reset();
  default_mask_ = mask;
  options_.comm = std::move(comm);
}

}  // namespace moe_ep::detail
