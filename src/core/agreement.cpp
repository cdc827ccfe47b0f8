#include "core/agreement.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <sstream>

#include <moe_ep/error.hpp>

#include "comm/agree.hpp"
#include "core/message.hpp"
#include "protocol/epoch.hpp"

namespace moe_ep::detail {
namespace {

// One line a fact: `name<TAB>value`. Line breaks and tabs within a value become spaces.
std::string line(const std::string& name, std::string value) {
  std::replace_if(value.begin(), value.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return name + "\t" + value + "\n";
}

std::string encode(const Announcement& own) {
  std::string text;
  if (own.failure) {
    text += line(own.failure->bad_argument ? "!argument" : "!error", own.failure->reason);
  }
  text += line("!rank", std::to_string(own.rank));
  text += line("!workspace_id", std::to_string(own.workspace_id));
  text += line("!epoch", std::to_string(own.epoch));
  for (const auto& [name, value] : own.fields)
    text += line(name, value);
  return text;
}

// The whole of `text` as a number.
template <class Number>
Number parse(const std::string& name, const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw MoEEpError("agree: " + name + " must be a number, got '" + text + "'");
  }
  return number;
}

Announcement decode(const std::string& text) {
  Announcement announcement;
  std::istringstream lines(text);
  for (std::string entry; std::getline(lines, entry);) {
    const auto tab = entry.find('\t');
    if (tab == std::string::npos) {
      throw MoEEpError("agree: an announcement line must have a name and a value, got '" + entry +
                       "'");
    }
    const std::string name = entry.substr(0, tab);
    const std::string value = entry.substr(tab + 1);
    if (name == "!argument" || name == "!error") {
      announcement.failure = OwnFailure{name == "!argument", value};
    } else if (name == "!rank") {
      announcement.rank = parse<int>(name, value);
    } else if (name == "!workspace_id") {
      announcement.workspace_id = parse<std::uint64_t>(name, value);
    } else if (name == "!epoch") {
      announcement.epoch = parse<std::uint32_t>(name, value);
    } else {
      announcement.fields.emplace_back(name, value);
    }
  }
  return announcement;
}

void throw_failures(const std::string& who, const std::vector<Announcement>& all) {
  std::vector<std::pair<std::string, std::vector<int>>> ranks_of_reason;  // in order of ranks
  bool only_bad_arguments = true;
  for (const Announcement& peer : all) {
    if (!peer.failure) continue;
    only_bad_arguments = only_bad_arguments && peer.failure->bad_argument;
    const auto same = std::find_if(ranks_of_reason.begin(), ranks_of_reason.end(),
                                   [&](const auto& e) { return e.first == peer.failure->reason; });
    if (same == ranks_of_reason.end()) {
      ranks_of_reason.push_back({peer.failure->reason, {peer.rank}});
    } else {
      same->second.push_back(peer.rank);
    }
  }
  if (ranks_of_reason.empty()) return;
  std::string text;
  for (const auto& [reason, ranks] : ranks_of_reason) {
    text += concat(text.empty() ? "" : "; ", list_ranks(ranks), ": ", reason);
  }
  text = concat(who, ": every rank must pass its own checks, got ", text);
  if (only_bad_arguments) throw std::invalid_argument(text);
  throw MoEEpError(text);
}

void throw_differences(const std::string& who, const std::vector<Announcement>& all) {
  const auto& reference = all.front().fields;
  for (std::size_t field = 0; field < reference.size(); ++field) {
    std::map<std::string, std::vector<int>> ranks_of_value;
    for (const Announcement& peer : all) {
      const bool present =
          field < peer.fields.size() && peer.fields[field].first == reference[field].first;
      ranks_of_value[present ? peer.fields[field].second : "(none)"].push_back(peer.rank);
    }
    if (ranks_of_value.size() == 1) continue;
    std::string values;
    for (const auto& [value, ranks] : ranks_of_value) {
      values += concat(values.empty() ? "" : ", ", value, " on ", list_ranks(ranks));
    }
    throw std::invalid_argument(
        concat(who, ": ", reference[field].first, " must be the same on every rank, got ", values));
  }
}

}  // namespace

std::vector<int> all_ranks(int num_ranks) {
  std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::uint32_t last_epoch(const std::vector<Announcement>& all) {
  std::optional<protocol::Epoch> last;
  for (const Announcement& peer : all) {
    if (peer.workspace_id == 0) continue;
    if (!last || protocol::has_reached(peer.epoch, *last)) last = peer.epoch;
  }
  return last.value_or(0);
}

std::vector<Announcement> agree(CommBackend& comm, const std::string& who,
                                const std::vector<int>& members, int rank,
                                const Announcement& own) {
  const auto position = std::find(members.begin(), members.end(), rank);
  Announcement mine = own;
  mine.rank = rank;
  const int index = static_cast<int>(position - members.begin());
  const int size = static_cast<int>(members.size());
  if (!mine.failure && (comm.get_size() != size || comm.get_rank() != index)) {
    mine.failure =
        OwnFailure{true, concat("the comm backend must have rank ", index, " of ", size,
                                ", got rank ", comm.get_rank(), " of ", comm.get_size())};
  }
  std::vector<Announcement> all;
  for (const std::string& message :
       checked_allgather(comm, comm.get_rank(), comm.get_size(), encode(mine))) {
    all.push_back(decode(message));
  }
  throw_failures(who, all);
  throw_differences(who, all);
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    if (all[peer].rank == members[peer]) continue;
    throw MoEEpError(
        concat(who, ": rank ", members[peer], " must speak for itself, got rank ", all[peer].rank));
  }
  return all;
}

}  // namespace moe_ep::detail
