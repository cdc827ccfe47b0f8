// What ranks tell each other when an instance is made, and what must be equal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <moe_ep/comm_backend.hpp>

namespace moe_ep::detail {

// How a rank's own checks ended: the kind decides what every rank throws.
struct OwnFailure {
  bool bad_argument = false;
  std::string reason;
};

struct Announcement {
  int rank = 0;  // agree() sets it
  std::optional<OwnFailure> failure;
  std::vector<std::pair<std::string, std::string>> fields;  // must agree: name, value
  std::uint64_t workspace_id = 0;  // of the workspace this rank would share; 0 = none
  std::uint32_t epoch = 0;         // of its last step, if it has a workspace
};

// The latest epoch of all ranks that have a workspace; 0 if none has.
std::uint32_t last_epoch(const std::vector<Announcement>& all);

// Collective. Exchanges announcements between `members` (comm's rank i is members[i]) and throws
// alike on every rank if a rank failed (std::invalid_argument or MoEEpError) or a field differs
// (std::invalid_argument). `who` starts every message. Returns all announcements.
std::vector<Announcement> agree(CommBackend& comm, const std::string& who,
                                const std::vector<int>& members, int rank, const Announcement& own);

// 0, 1, ..., num_ranks - 1.
std::vector<int> all_ranks(int num_ranks);

}  // namespace moe_ep::detail
