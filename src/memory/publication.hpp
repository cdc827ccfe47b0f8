// How ranks of one process come to share an object that one of them has made.
#pragma once

#include <cstdint>
#include <memory>

#include "memory/slice_map.hpp"

namespace moe_ep::memory {

// Holds a view out under a key that the group has agreed on. The other ranks call find() while the
// Publication lives; it keeps no view alive.
class Publication {
 public:
  Publication(std::uint64_t key, const std::shared_ptr<SliceMap>& view);
  ~Publication();
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  // @throws MoEEpError when nothing is published under `key`
  static std::shared_ptr<SliceMap> find(std::uint64_t key);

 private:
  const std::uint64_t key_;
};

}  // namespace moe_ep::memory
