// Makes system calls fail in a forked rank.
#pragma once

#include <cstddef>
#include <initializer_list>

namespace moe_ep::testing {

// Leaves this process room for `spare` more descriptors, until the end of the scope.
class ScopedFdLimit {
 public:
  explicit ScopedFdLimit(int spare);
  ~ScopedFdLimit();
  ScopedFdLimit(const ScopedFdLimit&) = delete;
  ScopedFdLimit& operator=(const ScopedFdLimit&) = delete;

 private:
  std::size_t old_ = 0;
};

// Bounds the size of the files (and memfds) that this process may grow, until the end of the scope.
class ScopedFileSizeLimit {
 public:
  explicit ScopedFileSizeLimit(std::size_t bytes);
  ~ScopedFileSizeLimit();
  ScopedFileSizeLimit(const ScopedFileSizeLimit&) = delete;
  ScopedFileSizeLimit& operator=(const ScopedFileSizeLimit&) = delete;

 private:
  std::size_t old_ = 0;
};

// Leaves this process `spare` more bytes of address space, until the end of the scope.
class ScopedAddressSpaceLimit {
 public:
  explicit ScopedAddressSpaceLimit(std::size_t spare);
  ~ScopedAddressSpaceLimit();
  ScopedAddressSpaceLimit(const ScopedAddressSpaceLimit&) = delete;
  ScopedAddressSpaceLimit& operator=(const ScopedAddressSpaceLimit&) = delete;

 private:
  std::size_t old_ = 0;
};

// From now on these system calls of this process fail with `error` (seccomp). For good: use it in a
// child. False where seccomp is not available.
bool deny_system_calls(std::initializer_list<long> numbers, int error);

}  // namespace moe_ep::testing
