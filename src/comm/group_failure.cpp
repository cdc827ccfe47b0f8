#include "comm/group_failure.hpp"

#include <cstdint>
#include <cstring>

#include <moe_ep/error.hpp>

namespace moe_ep::detail {

void GroupFailure::raise() const {
  if (missing.empty()) throw MoEEpError(text);
  throw MoEEpTimeoutError(text, missing, Phase::kSetup);
}

std::string GroupFailure::encode() const {
  const auto count = static_cast<std::uint32_t>(missing.size());
  std::string bytes(sizeof count + count * sizeof(int), '\0');
  std::memcpy(bytes.data(), &count, sizeof count);
  if (count > 0) std::memcpy(bytes.data() + sizeof count, missing.data(), count * sizeof(int));
  return bytes + text;
}

GroupFailure GroupFailure::decode(std::string_view bytes) {
  std::uint32_t count = 0;
  if (bytes.size() < sizeof count) throw MoEEpError("comm backend: got a failure notice cut short");
  std::memcpy(&count, bytes.data(), sizeof count);
  bytes.remove_prefix(sizeof count);
  if (bytes.size() / sizeof(int) < count) {
    throw MoEEpError("comm backend: got a failure notice cut short");
  }
  GroupFailure failure;
  failure.missing.resize(count);
  if (count > 0) std::memcpy(failure.missing.data(), bytes.data(), count * sizeof(int));
  failure.text = bytes.substr(count * sizeof(int));
  return failure;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace moe_ep::detail
