#include "memory/member_info.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include <moe_ep/error.hpp>

#include "comm/agree.hpp"
#include "comm/group_failure.hpp"
#include "comm/random.hpp"
#include "memory/fd_passing.hpp"

namespace moe_ep::memory {
namespace {

static_assert(std::is_trivially_copyable_v<MemberInfo>);

MemberInfo parse(const std::string& bytes, std::string_view operation, std::size_t member) {
  MemberInfo info;
  if (bytes.size() != sizeof info) {
    throw MoEEpError(std::string(operation) + ": every rank must run the same version, got " +
                     std::to_string(bytes.size()) + " bytes instead of " +
                     std::to_string(sizeof info) + " from rank " + std::to_string(member));
  }
  std::memcpy(&info, bytes.data(), sizeof info);
  return info;
}

template <class Value>
void require_equal(std::string_view operation, const char* name, std::size_t member, Value first,
                   Value other) {
  if (first == other) return;
  throw std::invalid_argument(std::string(operation) + ": " + name +
                              " must be equal on every rank, got " + std::to_string(first) +
                              " on rank 0 and " + std::to_string(other) + " on rank " +
                              std::to_string(member));
}

std::vector<int> ranks_of(const RankMask& mask) {
  std::vector<int> ranks;
  mask.for_each([&](int rank) { ranks.push_back(rank); });
  return ranks;
}

}  // namespace

MemberInfo MemberInfo::here() {
  MemberInfo info;
  info.process = process_token();
  const std::string host = host_identity();
  std::copy_n(host.data(), std::min(host.size(), info.host.size()), info.host.data());
  info.nonce = detail::random_u64();
  return info;
}

std::vector<MemberInfo> gather_members(CommBackend& comm, std::string_view operation,
                                       const std::optional<std::string>& own_failure,
                                       const MemberInfo& own) {
  const std::string_view payload(reinterpret_cast<const char*>(&own), sizeof own);
  const auto gathered = detail::gather_outcomes(comm, operation, own_failure, payload);
  std::vector<MemberInfo> infos;
  for (std::size_t member = 0; member < gathered.size(); ++member) {
    infos.push_back(parse(gathered[member], operation, member));
    const MemberInfo& info = infos.back();
    require_equal(operation, "bytes", member, infos[0].bytes, info.bytes);
    require_equal(operation, "num_ranks", member, infos[0].num_ranks, info.num_ranks);
    if (info.members != infos[0].members) {
      throw std::invalid_argument(
          std::string(operation) + ": members must be equal on every rank, got " +
          detail::ranks_text(ranks_of(infos[0].members)) + " on rank 0 and " +
          detail::ranks_text(ranks_of(info.members)) + " on rank " + std::to_string(member));
    }
    // Where its slice will be mapped.
    const std::vector<int> ranks = ranks_of(info.members);
    if (ranks.size() != gathered.size() || ranks[member] != info.rank) {
      throw MoEEpError(std::string(operation) + ": members must be in ascending order, got rank " +
                       std::to_string(info.rank) + " at position " + std::to_string(member) +
                       " of " + detail::ranks_text(ranks));
    }
    if (info.host != infos[0].host) {
      throw MoEEpError(std::string(operation) +
                       ": every rank must run on one host, got another host on rank " +
                       std::to_string(member));
    }
  }
  return infos;
}

bool outsider_may_write(const std::vector<MemberInfo>& infos) {
  const auto is_here = [&](int rank, std::uint64_t workspace) {
    return std::any_of(infos.begin(), infos.end(), [&](const MemberInfo& info) {
      return info.rank == rank && info.workspace == workspace;
    });
  };
  bool found = false;
  for (const MemberInfo& info : infos)
    info.former.for_each([&](int rank) { found = found || !is_here(rank, info.workspace); });
  return found;
}

bool in_one_process(const std::vector<MemberInfo>& infos) {
  return std::all_of(infos.begin(), infos.end(),
                     [&](const MemberInfo& info) { return info.process == infos.front().process; });
}

SharedSegments::SharedSegments(CommBackend& comm, const std::vector<MemberInfo>& infos) {
  for (const MemberInfo& info : infos)
    announced_.push_back(info.segment);
  const auto own = static_cast<std::size_t>(comm.get_rank());
  segment_bytes_ = announced_[own].bytes;
  if (in_one_process(infos)) return;
  for (detail::UniqueFd& fd : exchange_fds(comm, announced_[own].fd))
    received_.push_back(std::make_shared<const detail::UniqueFd>(std::move(fd)));
}

std::shared_ptr<const detail::UniqueFd> SharedSegments::fd(std::size_t member,
                                                           std::string_view operation) const {
  const SegmentId& announced = announced_[member];
  if (announced.bytes != segment_bytes_) {
    throw MoEEpError(std::string(operation) + ": every slice must have " +
                     std::to_string(segment_bytes_) + " bytes, got " +
                     std::to_string(announced.bytes) + " announced at position " +
                     std::to_string(member));
  }
  auto fd = received_.empty() ? HostSegment::find(announced) : received_[member];
  require_segment(fd->get(), announced, operation);
  return fd;
}

}  // namespace moe_ep::memory
