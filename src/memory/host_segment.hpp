// One rank's slice as anonymous shared memory: a memfd, or an unlinked POSIX shared memory object
// where memfd_create is not allowed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "comm/unique_fd.hpp"
#include "memory/publication.hpp"

namespace moe_ep::memory {

enum class SegmentKind : std::int32_t {
  kMemfd = 0,  // sealed: nobody can shrink it under its users
  kShmOpen,    // cannot be sealed
};

// What a segment's owner tells its peers, to recognise what they receive.
struct SegmentId {
  SegmentKind kind = SegmentKind::kMemfd;
  std::int32_t fd = -1;   // valid in the owner's process only
  std::uint64_t key = 0;  // of HostSegment::find()
  dev_t device = 0;
  ino_t inode = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(const SegmentId&, const SegmentId&) = default;
};

class HostSegment {
 public:
  HostSegment() = default;
  // Zeroed memory of `bytes`, a multiple of the page size. All pages are there when it returns: a
  // lack of memory is an error here and no SIGBUS later.
  // @throws MoEEpError
  static HostSegment create(std::size_t bytes);
  static HostSegment create(std::size_t bytes, SegmentKind kind);

  // The descriptor of a segment that another thread of this process owns. The caller's share keeps
  // the number from being closed, and given to another file, under its use.
  // @throws MoEEpError its owner has let go of it
  static std::shared_ptr<const detail::UniqueFd> find(const SegmentId& id) {
    return Published::find(id.key);
  }

  const SegmentId& id() const noexcept { return id_; }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  void reset() noexcept { *this = HostSegment(); }

 private:
  using Published = Publication<const detail::UniqueFd>;

  std::shared_ptr<const detail::UniqueFd> fd_;
  std::unique_ptr<Published> published_;
  SegmentId id_;
};

// Checks that `fd` is the segment that its owner announced, of that size and unable to shrink.
// @throws MoEEpError
void require_segment(int fd, const SegmentId& announced, std::string_view operation);

}  // namespace moe_ep::memory
