// Bytes as a broken or hostile peer might send them. The same seed gives the same bytes everywhere.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "support/group_step.hpp"

namespace moe_ep::testing {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : seed_(seed) {}

  // A number below `bound`.
  std::size_t below(std::size_t bound) {
    return bound == 0 ? 0 : static_cast<std::size_t>(mix(seed_, ++draws_) % bound);
  }

  // A number that readers are known to stumble over, or any.
  std::uint32_t word() {
    static constexpr std::uint32_t kWords[] = {
        0,           1,  2,    0x7fffffffu, 0x80000000u, ~0u,  ~1u,
        0x40000000u, 64, 4096, 0x00010000u, 0x3fffffffu, 0xff, 0x7f7f7f7fu};
    const std::size_t pick = below(2 * std::size(kWords));
    return pick < std::size(kWords) ? kWords[pick]
                                    : static_cast<std::uint32_t>(mix(seed_, ++draws_));
  }

  // `bytes` with one to four things wrong.
  std::string mutate(std::string bytes) {
    for (std::size_t count = 1 + below(4); count > 0; --count)
      mutate_once(bytes);
    return bytes;
  }

 private:
  void mutate_once(std::string& bytes) {
    const std::size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:  // cut short
        bytes.resize(at);
        return;
      case 1:  // something behind
        bytes.append(below(40), static_cast<char>(word()));
        return;
      case 2:  // a bit
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        return;
      case 3:  // a piece twice
        bytes.insert(at, bytes.substr(below(at + 1), 16));
        return;
      default:  // an aligned word, where numbers lie
        const std::size_t place = at / 4 * 4;
        if (place + 4 > bytes.size()) return;
        const std::uint32_t value = word();
        std::memcpy(bytes.data() + place, &value, sizeof value);
    }
  }

  const std::uint64_t seed_;
  std::uint64_t draws_ = 0;
};

}  // namespace moe_ep::testing
