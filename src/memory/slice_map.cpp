#include "memory/slice_map.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include <moe_ep/error.hpp>

#include "comm/random.hpp"
#include "comm/system_error.hpp"

namespace moe_ep::memory {
namespace {

constexpr std::string_view kOperation = "shared memory";
constexpr int kReservedFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void reserve_again(std::byte* address, std::size_t bytes) {
  if (::mmap(address, bytes, PROT_NONE, kReservedFlags | MAP_FIXED, -1, 0) == MAP_FAILED) {
    detail::throw_errno(kOperation, "mmap(PROT_NONE)", errno);
  }
}

}  // namespace

SliceMap::SliceMap(int num_slices, std::size_t slice_bytes)
    : slice_bytes_(slice_bytes),
      stride_(stride_of(slice_bytes, num_slices)),
      range_bytes_(page_bytes() + static_cast<std::size_t>(num_slices) * stride_),
      id_(detail::random_u64()) {
  void* const range = ::mmap(nullptr, range_bytes_, PROT_NONE, kReservedFlags, -1, 0);
  if (range == MAP_FAILED) {
    detail::throw_errno(
        kOperation, "reserving " + std::to_string(range_bytes_) + " bytes of address space", errno);
  }
  range_ = static_cast<std::byte*>(range);
}

SliceMap::~SliceMap() {
  ::munmap(range_, range_bytes_);
}

std::size_t SliceMap::page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t SliceMap::stride_of(std::size_t bytes, int num_slices) {
  const std::size_t page = page_bytes();
  std::size_t stride = 0;
  std::size_t total = 0;
  if (__builtin_add_overflow(bytes, 2 * page - 1, &stride) ||
      __builtin_mul_overflow(stride, static_cast<std::size_t>(num_slices) + 1, &total) ||
      total > PTRDIFF_MAX) {
    throw MoEEpError(std::string(kOperation) + ": " + std::to_string(num_slices) +
                     " slices must fit into the address space, got slices of " +
                     std::to_string(bytes) + " bytes");
  }
  return stride / page * page;
}

void SliceMap::map(int rank, int fd) {
  void* const address = slice(rank);
  if (::mmap(address, slice_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
      MAP_FAILED) {
    return;
  }
  const int error = errno;
  // A failed MAP_FIXED may have left a hole that somebody else's mmap() could be given.
  reserve_again(slice(rank), slice_bytes_);
  detail::throw_errno(kOperation, "mmap of " + std::to_string(slice_bytes_) + " bytes", error);
}

void SliceMap::unmap(int rank) {
  reserve_again(slice(rank), slice_bytes_);
}

void SliceMap::unmap_all() {
  reserve_again(range_, range_bytes_);
}

void SliceMap::attach(int rank) {
  const std::lock_guard lock(mutex_);
  attached_.insert(rank);
}

void SliceMap::detach(int rank) {
  const std::lock_guard lock(mutex_);
  attached_.erase(rank);
}

bool SliceMap::attached(int rank) const {
  const std::lock_guard lock(mutex_);
  return attached_.contains(rank);
}

}  // namespace moe_ep::memory
