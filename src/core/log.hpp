// Where the library's few warnings go.
#pragma once

#include <string>

namespace moe_ep::detail {

// Writes `moe_ep: message` to standard error, or to the sink that a frontend has set.
void log_warning(const std::string& message);

}  // namespace moe_ep::detail
