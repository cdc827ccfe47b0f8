#include "comm/agree.hpp"

#include <cstdint>
#include <cstring>
#include <utility>

#include <moe_ep/error.hpp>

#include "comm/group_failure.hpp"

namespace moe_ep::detail {
namespace {

struct Envelope {
  std::uint64_t magic = 0x6d6f655f65703a31;  // "moe_ep:1"
  std::int32_t rank = 0;
  std::int32_t size = 0;
};

[[noreturn]] void throw_bad_allgather(const std::string& got) {
  throw MoEEpError("comm backend: allgather must return every rank's message in rank order, got " +
                   got);
}

std::string seal(const Envelope& envelope, std::string_view message) {
  std::string bytes(sizeof envelope, '\0');
  std::memcpy(bytes.data(), &envelope, sizeof envelope);
  return bytes.append(message);
}

std::string open(const std::string& bytes, int position, int size) {
  const std::string where = " at position " + std::to_string(position);
  Envelope envelope;
  if (bytes.size() < sizeof envelope) {
    throw_bad_allgather("a message of " + std::to_string(bytes.size()) + " bytes" + where);
  }
  std::memcpy(&envelope, bytes.data(), sizeof envelope);
  if (envelope.magic != Envelope{}.magic) throw_bad_allgather("a foreign message" + where);
  if (envelope.rank != position) {
    throw_bad_allgather("rank " + std::to_string(envelope.rank) + "'s message" + where);
  }
  if (envelope.size != size) {
    throw_bad_allgather("a message of a group of " + std::to_string(envelope.size) + " ranks" +
                        where + " of " + std::to_string(size));
  }
  return bytes.substr(sizeof envelope);
}

struct Outcome {
  std::string operation;
  bool failed = false;
  std::string_view text;  // the reason or the payload

  std::string encode() const {
    std::string bytes = operation;
    return bytes.append(1, '\0').append(1, failed ? 'f' : 'k').append(text);
  }
  static Outcome decode(std::string_view bytes) {
    const auto end = bytes.find('\0');
    if (end == bytes.npos || end + 1 == bytes.size()) return {"an unknown operation", false, {}};
    return {std::string(bytes.substr(0, end)), bytes[end + 1] == 'f', bytes.substr(end + 2)};
  }
};

std::string_view without_prefix(std::string_view reason, std::string_view operation) {
  const std::string prefix = std::string(operation) + ": ";
  return reason.starts_with(prefix) ? reason.substr(prefix.size()) : reason;
}

// "rank 1: no memory; ranks 0 and 2: no permission"
std::string reasons_text(const std::vector<std::pair<std::string, std::vector<int>>>& reasons) {
  std::string text;
  for (const auto& [reason, ranks] : reasons) {
    if (!text.empty()) text += "; ";
    text += ranks_text(ranks) + ": " + reason;
  }
  return text;
}

}  // namespace

std::vector<std::string> checked_allgather(CommBackend& comm, int rank, int size,
                                           std::string_view message) {
  std::vector<std::string> messages = comm.allgather(seal({.rank = rank, .size = size}, message));
  if (messages.size() != static_cast<std::size_t>(size)) {
    throw_bad_allgather(std::to_string(messages.size()) + " messages in a group of " +
                        std::to_string(size));
  }
  for (int src = 0; src < size; ++src) {
    auto& bytes = messages[static_cast<std::size_t>(src)];
    bytes = open(bytes, src, size);
  }
  return messages;
}

std::vector<std::string> gather_outcomes(CommBackend& comm, std::string_view operation,
                                         const std::optional<std::string>& own_failure,
                                         std::string_view payload) {
  const int rank = comm.get_rank();
  const Outcome own = {std::string(operation), own_failure.has_value(),
                       own_failure ? without_prefix(*own_failure, operation) : payload};
  std::vector<std::string> messages = checked_allgather(comm, rank, comm.get_size(), own.encode());

  std::vector<std::pair<std::string, std::vector<int>>> reasons;
  for (std::size_t src = 0; src < messages.size(); ++src) {
    const auto outcome = Outcome::decode(messages[src]);
    if (outcome.operation != operation) {
      throw MoEEpError(own.operation + ": every rank must be in the same operation, got rank " +
                       std::to_string(src) + " in '" + outcome.operation + "'");
    }
    std::string text(outcome.text);
    if (outcome.failed) {
      auto known = reasons.begin();
      while (known != reasons.end() && known->first != text)
        ++known;
      if (known == reasons.end()) known = reasons.insert(known, {text, {}});
      known->second.push_back(static_cast<int>(src));
    }
    messages[src] = std::move(text);
  }
  if (reasons.empty()) return messages;
  throw MoEEpError(own.operation + ": must succeed on every rank, got a failure on " +
                   reasons_text(reasons));
}

}  // namespace moe_ep::detail
