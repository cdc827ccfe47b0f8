#include "memory/host_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include <moe_ep/error.hpp>

#include "comm/random.hpp"
#include "comm/system_error.hpp"
#include "memory/free_memory.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3; before: EINVAL
#endif

namespace moe_ep::memory {

using detail::UniqueFd;

namespace {

constexpr std::string_view kOperation = "shared memory";
constexpr char kName[] = "moe_ep";

// Empty, with errno set, when the system has no memfd or does not allow it.
UniqueFd open_memfd() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(::memfd_create(kName, kFlags | MFD_NOEXEC_SEAL));
  if (!fd && errno == EINVAL) fd = UniqueFd(::memfd_create(kName, kFlags));
  return fd;
}

UniqueFd open_shm() {
  const std::string name = "/moe_ep-" + detail::random_hex(16);
  UniqueFd fd(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!fd) detail::throw_errno(kOperation, "shm_open", errno);
  ::shm_unlink(name.c_str());
  return fd;
}

// ftruncate() beyond the limit would raise SIGXFSZ.
void require_file_size_allowed(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    throw MoEEpError(std::string(kOperation) + ": a slice must fit RLIMIT_FSIZE (" +
                     std::to_string(limit.rlim_cur) + " bytes), got " + std::to_string(bytes));
  }
}

// In pieces: a signal makes fallocate() undo the piece it is at, and a profiler's timer would
// never let a large one finish.
void allocate_pages(int fd, std::size_t bytes) {
  constexpr std::size_t kPiece = std::size_t{32} << 20;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t step = std::min(kPiece, bytes - done);
    if (::fallocate(fd, 0, static_cast<off_t>(done), static_cast<off_t>(step)) == 0) {
      done += step;
    } else if (errno != EINTR) {
      detail::throw_errno(kOperation, "fallocate of " + std::to_string(bytes) + " bytes", errno);
    }
  }
}

struct stat status_of(int fd) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) detail::throw_errno(kOperation, "fstat", errno);
  return status;
}

}  // namespace

HostSegment HostSegment::create(std::size_t bytes) {
  // A probe decides: it costs two system calls and keeps the reasons of the real attempt apart.
  const bool has_memfd = static_cast<bool>(open_memfd());
  return create(bytes, has_memfd ? SegmentKind::kMemfd : SegmentKind::kShmOpen);
}

HostSegment HostSegment::create(std::size_t bytes, SegmentKind kind) {
  require_file_size_allowed(bytes);
  require_free_memory(bytes);
  UniqueFd opened = kind == SegmentKind::kMemfd ? open_memfd() : open_shm();
  if (!opened) detail::throw_errno(kOperation, "memfd_create", errno);
  const int fd = opened.get();
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    detail::throw_errno(kOperation, "ftruncate to " + std::to_string(bytes) + " bytes", errno);
  }
  allocate_pages(fd, bytes);
  if (kind == SegmentKind::kMemfd &&
      ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    detail::throw_errno(kOperation, "fcntl(F_ADD_SEALS)", errno);
  }
  const struct stat status = status_of(fd);
  HostSegment segment;
  segment.id_ = {.kind = kind,
                 .fd = fd,
                 .key = detail::random_u64(),
                 .device = status.st_dev,
                 .inode = status.st_ino,
                 .bytes = bytes};
  segment.fd_ = std::make_shared<const UniqueFd>(std::move(opened));
  segment.published_ = std::make_unique<Published>(segment.id_.key, segment.fd_);
  return segment;
}

void require_segment(int fd, const SegmentId& announced, std::string_view operation) {
  const std::string prefix = std::string(operation) + ": a peer's descriptor must be ";
  const struct stat status = status_of(fd);
  if (status.st_dev != announced.device || status.st_ino != announced.inode) {
    throw MoEEpError(prefix + "the one it announced, got another file");
  }
  if (static_cast<std::uint64_t>(status.st_size) != announced.bytes) {
    throw MoEEpError(prefix + std::to_string(announced.bytes) + " bytes long, got " +
                     std::to_string(status.st_size));
  }
  if (announced.kind != SegmentKind::kMemfd) return;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw MoEEpError(prefix + "sealed against shrinking, got seals " + std::to_string(seals));
  }
}

}  // namespace moe_ep::memory
