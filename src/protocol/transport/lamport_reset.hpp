// Arming the landing rows of Lamport steps: part of a slice's reset.
#pragma once

#include <cstdint>

#include "protocol/step.hpp"
#include "protocol/transport/lamport.hpp"

namespace moe_ep::protocol {

// Rows of a Lamport combine are BF16.
inline constexpr DataWords kCombineWords = DataWords::kBf16;

// Arms the own landing rows and stamps all tags with `epoch`, whatever an aborted step left there.
MOE_EP_HD inline void reset_lamport(const Workspace& workspace, Epoch epoch) {
  const LamportLayout& layout = workspace.layout.lamport;
  if (!layout.enabled()) return;
  std::byte* own = workspace.own();
  const auto fill = [&](std::int64_t from, std::int64_t to, std::uint64_t value) {
    for (std::int64_t at = from; at < to; at += 8)
      *reinterpret_cast<std::uint64_t*>(own + at) = value;
  };
  const auto twice = [](std::uint32_t word) { return make_tag(word, word); };
  fill(layout.lines, layout.rows, make_tag(epoch, 0));
  fill(layout.rows, layout.combine, twice(sentinel_of(layout.words)));
  fill(layout.combine, layout.end, twice(sentinel_of(kCombineWords)));
  for (Epoch& stamped : workspace.header()->lamport_stamped)
    stamped = epoch;
}

}  // namespace moe_ep::protocol
