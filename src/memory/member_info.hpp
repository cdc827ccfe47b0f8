// What the members of a workspace tell each other before they map anything.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <moe_ep/comm_backend.hpp>
#include <moe_ep/rank_mask.hpp>

#include "comm/unique_fd.hpp"
#include "memory/host_segment.hpp"
#include "memory/process_identity.hpp"

namespace moe_ep::memory {

// Travels as its bytes: all members run the same library on one host.
struct MemberInfo {
  ProcessToken process{};
  std::array<char, 40> host{};  // host_identity(), zero-padded
  std::uint64_t view = 0;       // of the SliceMap that the member uses; 0 before it has one
  std::uint64_t nonce = 0;      // the first member's becomes the workspace's id
  std::uint64_t bytes = 0;      // of a slice, as the caller asked
  std::int32_t num_ranks = 0;
  std::int32_t rank = 0;
  RankMask members;
  std::uint64_t workspace = 0;  // its id at the member; 0 before it has one
  RankMask former;              // whose processes have been able to write into the member's memory
  SegmentId segment;

  // Of this process, with a fresh nonce.
  static MemberInfo here();
  bool same_view(const MemberInfo& other) const {
    return process == other.process && view == other.view;
  }
};

// Collective; gather_outcomes() of every member's info.
// @throws MoEEpError a member failed or is on another host
// @throws std::invalid_argument on every rank: bytes, num_ranks or members differ
std::vector<MemberInfo> gather_members(CommBackend& comm, std::string_view operation,
                                       const std::optional<std::string>& own_failure,
                                       const MemberInfo& own);

// Whether a process that is not among these members, because it was left out or because another one
// has its place, may still write into the memory of one that is.
bool outsider_may_write(const std::vector<MemberInfo>& infos);

bool in_one_process(const std::vector<MemberInfo>& infos);

// Every member's segment as a descriptor of this process, in the order of `infos`.
class SharedSegments {
 public:
  // Collective unless all members are threads of one process, whose own descriptors serve all.
  // @throws MoEEpError on every rank
  SharedSegments(CommBackend& comm, const std::vector<MemberInfo>& infos);

  // Checked: the segment that the member announced, of the own one's size, unable to shrink.
  // @throws MoEEpError
  std::shared_ptr<const detail::UniqueFd> fd(std::size_t member, std::string_view operation) const;

 private:
  std::vector<SegmentId> announced_;
  std::uint64_t segment_bytes_ = 0;
  std::vector<std::shared_ptr<const detail::UniqueFd>> received_;  // empty in one process
};

}  // namespace moe_ep::memory
