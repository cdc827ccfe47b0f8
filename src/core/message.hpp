// Building blocks of error messages: `operation: requirement, got value`.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <moe_ep/tensor.hpp>

namespace moe_ep {

// Tensors are described only if the message is needed.
inline std::ostream& operator<<(std::ostream& out, const TensorView& tensor) {
  return out << describe(tensor);
}
inline std::ostream& operator<<(std::ostream& out, Device device) {
  if (device.type == Device::kCpu) return out << "CPU";
  return out << "cuda:" << device.index;
}

namespace detail {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// Throws std::invalid_argument with the parts joined, unless `holds`.
template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) throw std::invalid_argument(concat(parts...));
}

// "rank 2", "ranks 0, 2 and 3"
inline std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t index = 0; index < ranks.size(); ++index) {
    if (index > 0) text += index + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[index]);
  }
  return text;
}

}  // namespace detail
}  // namespace moe_ep
