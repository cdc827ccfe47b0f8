// The address range of one view of a symmetric workspace.
//
// | guard page | slice 0 | guard page | slice 1 | guard page | ... | slice R-1 | guard page |
//
// The whole range is reserved at once and stays reserved, so that slices keep their addresses
// whatever is mapped into them. What is not mapped, guard pages included, faults when touched.
//
// Ranks of one process share one view where they can; then several threads use it, but only one at
// a time changes it, between two collectives of the group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>

namespace moe_ep::memory {

class SliceMap {
 public:
  // @param slice_bytes a multiple of the page size
  SliceMap(int num_slices, std::size_t slice_bytes);
  ~SliceMap();
  SliceMap(const SliceMap&) = delete;
  SliceMap& operator=(const SliceMap&) = delete;

  static std::size_t page_bytes();
  // Distance of neighbouring slices of `bytes`, which need not be a multiple of the page size.
  // @throws MoEEpError when `num_slices` of them exceed the address space
  static std::size_t stride_of(std::size_t bytes, int num_slices);

  // Of this view in this process; peers' views have others.
  std::uint64_t id() const { return id_; }
  std::byte* base() const { return slice(0); }
  std::byte* slice(int rank) const {
    return range_ + page_bytes() + static_cast<std::size_t>(rank) * stride_;
  }
  std::size_t stride() const { return stride_; }

  // Puts a segment into a slice, in place of what is there. @throws MoEEpError
  void map(int rank, int fd);
  // Leaves the addresses reserved and the memory to its other users. @throws MoEEpError
  void unmap(int rank);
  void unmap_all();

  // Ranks whose own instance uses this view. Thread-safe.
  void attach(int rank);
  void detach(int rank);
  bool attached(int rank) const;

 private:
  const std::size_t slice_bytes_;
  const std::size_t stride_;
  const std::size_t range_bytes_;
  const std::uint64_t id_;
  std::byte* range_ = nullptr;
  mutable std::mutex mutex_;
  std::set<int> attached_;
};

}  // namespace moe_ep::memory
