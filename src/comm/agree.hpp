// Agreement over any CommBackend, also one that somebody else wrote: what is gathered is checked,
// and a failure on one rank becomes the same exception on every rank.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <moe_ep/comm_backend.hpp>

namespace moe_ep::detail {

// Allgather that does not trust the backend: every message travels with its rank and the group's
// size, and entry i must be rank i's.
// @throws MoEEpError when it is not
std::vector<std::string> checked_allgather(CommBackend& comm, int rank, int size,
                                           std::string_view message);

// Collective. Every rank says whether its part of `operation` failed, and why; if any did, every
// rank throws MoEEpError with the same text, which names the ranks and their reasons. Otherwise
// returns every rank's payload, in rank order.
//
// A rank that failed locally must call it all the same, or its peers wait for it. Since nobody
// returns before everybody has entered, it is also a barrier.
std::vector<std::string> gather_outcomes(CommBackend& comm, std::string_view operation,
                                         const std::optional<std::string>& own_failure,
                                         std::string_view payload = {});

// Runs `work` and returns what it threw as text: the own_failure of gather_outcomes.
template <class Work>
std::optional<std::string> failure_of(Work&& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace moe_ep::detail
