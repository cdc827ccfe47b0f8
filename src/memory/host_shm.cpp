#include "memory/host_shm.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include <moe_ep/error.hpp>
#include <moe_ep/types.hpp>

#include "comm/agree.hpp"
#include "comm/group_failure.hpp"
#include "comm/random.hpp"
#include "memory/free_memory.hpp"
#include "memory/publication.hpp"

namespace moe_ep::memory {

using detail::failure_of;
using detail::gather_outcomes;

namespace {

constexpr std::string_view kCreate = "SymmetricWorkspace.create_host";
constexpr std::string_view kPrepare = "SymmetricWorkspace.checkpoint_prepare";
constexpr std::string_view kRestore = "SymmetricWorkspace.checkpoint_restore";
constexpr std::string_view kRemap = "SymmetricWorkspace.remap";

// Of the members that use one view, the first changes it for all.
bool leads_view(const std::vector<MemberInfo>& infos, std::size_t own) {
  std::size_t first = 0;
  while (!infos[first].same_view(infos[own]))
    ++first;
  return first == own;
}

std::size_t index_of(const CommBackend& comm) {
  return static_cast<std::size_t>(comm.get_rank());
}

}  // namespace

HostWorkspace::HostWorkspace(CommBackend& comm, std::size_t bytes, int num_ranks,
                             const std::vector<int>& members)
    : members_(members) {
  num_ranks_ = num_ranks;
  bytes_ = bytes;
  auto failure = failure_of([&] {
    if (bytes == 0) throw MoEEpError("bytes must be positive, got 0");
    require_members(comm, members);
    rank_ = members[index_of(comm)];
    slice_stride_ = SliceMap::stride_of(bytes, num_ranks);
    require_free_memory(members.size() * segment_bytes());
  });
  // Nobody takes memory before everybody has seen that there is enough for all.
  gather_members(comm, kCreate, failure, describe(members));
  failure = failure_of([&] { segment_ = HostSegment::create(segment_bytes()); });
  const auto infos = gather_members(comm, kCreate, failure, describe(members));
  id_ = infos.front().nonce;
  create_view(comm, infos);
  view_->attach(rank_);
  base_ = view_->base();
  mapped_ = true;
}

HostWorkspace::~HostWorkspace() {
  if (view_) view_->detach(rank_);
}

void HostWorkspace::checkpoint_prepare(CommBackend& comm) {
  if (!mapped_) return;
  const std::size_t own = index_of(comm);
  auto failure = failure_of([&] { require_own_place(comm, members_); });
  const auto infos = gather_members(comm, kPrepare, failure, describe(members_));
  // Everybody has arrived, so nobody touches the memory any more.
  mapped_ = false;
  segment_.reset();
  failure = failure_of([&] {
    if (leads_view(infos, own)) view_->unmap_all();
  });
  gather_outcomes(comm, kPrepare, failure);  // nobody returns before all have let go
}

void HostWorkspace::checkpoint_restore(CommBackend& comm) {
  if (mapped_) return;
  const std::size_t own = index_of(comm);
  auto failure = failure_of([&] {
    require_own_place(comm, members_);
    require_free_memory(members_.size() * segment_bytes());
  });
  gather_outcomes(comm, kRestore, failure);
  failure = failure_of([&] { segment_ = HostSegment::create(segment_bytes()); });
  std::vector<MemberInfo> infos;
  try {
    infos = gather_members(comm, kRestore, failure, describe(members_));
    const SharedSegments segments(comm, infos);
    failure = failure_of([&] {
      if (leads_view(infos, own)) map_segments(infos, own, segments, true, kRestore);
    });
    gather_outcomes(comm, kRestore, failure);
  } catch (...) {
    segment_.reset();
    if (!infos.empty() && leads_view(infos, own)) view_->unmap_all();
    throw;
  }
  mapped_ = true;
}

// What stays mapped is memory that nobody is told of; the next restore replaces it.
void HostWorkspace::discard() noexcept {
  mapped_ = false;
  segment_.reset();
  try {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      if (rank != rank_ && view_->attached(rank)) return;  // a thread that may be in a step
    }
    view_->unmap_all();
  } catch (const std::exception&) {
    // Stays mapped.
  }
}

void HostWorkspace::remap(CommBackend& comm, const std::vector<int>& members) {
  const std::size_t own = index_of(comm);
  auto failure = failure_of([&] {
    if (!mapped_)
      throw MoEEpError("the workspace must be mapped, got one after checkpoint_prepare");
    require_own_place(comm, members);
  });
  auto infos = gather_members(comm, kRemap, failure, describe(members));
  HostSegment fresh;
  // A process that was stopped, or only taken for dead, may go on with its step at any time. It
  // finds the old memory.
  const bool renew = outsider_may_write(infos);
  try {
    if (renew) {
      failure = failure_of([&] { fresh = HostSegment::create(segment_bytes()); });
      MemberInfo info = describe(members);
      info.segment = fresh.id();
      infos = gather_members(comm, kRemap, failure, info);
    }
    const SharedSegments segments(comm, infos);
    failure = failure_of([&] {
      if (!leads_view(infos, own)) return;
      map_segments(infos, own, segments, renew, kRemap);
      unmap_absent(members);
    });
    gather_outcomes(comm, kRemap, failure);
  } catch (...) {
    id_ = detail::random_u64();  // the next attempt starts from new memory, whatever is mapped now
    throw;
  }
  if (renew) segment_ = std::move(fresh);
  members_ = members;
  id_ = infos.front().nonce;
}

void HostWorkspace::unmap_absent(const std::vector<int>& members) {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const bool away = std::find(members.begin(), members.end(), rank) == members.end();
    // A rank that is out of the group but still a thread of this process keeps its memory: it may
    // be in the middle of a step.
    if (away && !view_->attached(rank)) view_->unmap(rank);
  }
}

// comm's rank i must be members[i], ascending, within [0, num_ranks).
void HostWorkspace::require_members(const CommBackend& comm,
                                    const std::vector<int>& members) const {
  if (num_ranks_ < 1 || num_ranks_ > kMaxRanks) {
    throw MoEEpError("num_ranks must be in [1, " + std::to_string(kMaxRanks) + "], got " +
                     std::to_string(num_ranks_));
  }
  const bool ascending =
      std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end();
  if (members.empty() || !ascending || members.front() < 0 || members.back() >= num_ranks_) {
    throw MoEEpError("members must be ascending ranks in [0, " + std::to_string(num_ranks_) +
                     "), got " + detail::ranks_text(members));
  }
  if (comm.get_size() != static_cast<int>(members.size())) {
    throw MoEEpError("comm must span the " + std::to_string(members.size()) +
                     " members, got a group of " + std::to_string(comm.get_size()));
  }
}

// As require_members, and this rank must be where comm says.
void HostWorkspace::require_own_place(const CommBackend& comm,
                                      const std::vector<int>& members) const {
  require_members(comm, members);
  const int here = members[index_of(comm)];
  if (here == rank_) return;
  throw MoEEpError("comm's rank " + std::to_string(comm.get_rank()) + " must be rank " +
                   std::to_string(here) + " of the workspace, got rank " + std::to_string(rank_));
}

// The pages of a slice; its guard page makes up the rest of the stride.
std::size_t HostWorkspace::segment_bytes() const {
  return slice_stride_ - SliceMap::page_bytes();
}

MemberInfo HostWorkspace::describe(const std::vector<int>& members) const {
  MemberInfo info = MemberInfo::here();
  info.view = view_ ? view_->id() : 0;
  info.bytes = bytes_;
  info.num_ranks = num_ranks_;
  info.rank = rank_;
  for (const int member : members) {
    if (member >= 0 && member < kMaxRanks) info.members.set(member);
  }
  info.workspace = id_;
  for (const int member : members_) {
    if (mapped_) info.former.set(member);
  }
  info.segment = segment_.id();
  return info;
}

void HostWorkspace::map_segments(const std::vector<MemberInfo>& infos, std::size_t own,
                                 const SharedSegments& segments, bool renewed,
                                 std::string_view operation) {
  for (std::size_t member = 0; member < infos.size(); ++member) {
    // Who uses this view already has its memory here, contents and all.
    if (mapped_ && !renewed && infos[member].same_view(infos[own])) continue;
    view_->map(infos[member].rank, segments.fd(member, operation)->get());
  }
}

void HostWorkspace::create_view(CommBackend& comm, const std::vector<MemberInfo>& infos) {
  const auto own = index_of(comm);
  const bool one_process = in_one_process(infos);
  const SharedSegments segments(comm, infos);
  std::optional<Publication<SliceMap>> publication;
  auto failure = failure_of([&] {
    if (one_process && own != 0) return;
    view_ = std::make_shared<SliceMap>(num_ranks_, segment_bytes());
    map_segments(infos, own, segments, true, kCreate);
    if (one_process) publication.emplace(id_, view_);
  });
  gather_outcomes(comm, kCreate, failure);
  if (!one_process) return;
  failure = failure_of([&] {
    if (own != 0) view_ = Publication<SliceMap>::find(id_);
  });
  gather_outcomes(comm, kCreate, failure);  // the publication outlives everybody's search
}

}  // namespace moe_ep::memory
