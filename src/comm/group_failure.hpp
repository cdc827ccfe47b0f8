// Why a group can no longer work together. Every later call of every member throws it again.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe_ep::detail {

struct GroupFailure {
  std::string text;
  std::vector<int> missing;  // ranks that did not arrive; empty unless it was a timeout

  // Throws MoEEpTimeoutError (phase setup) when ranks are missing, else MoEEpError.
  [[noreturn]] void raise() const;

  std::string encode() const;
  static GroupFailure decode(std::string_view bytes);
};

// "rank 3", "ranks 0, 2 and 5".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace moe_ep::detail
