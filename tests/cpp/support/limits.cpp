#include "support/limits.hpp"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <cstddef>
#include <vector>

#include "support/resources.hpp"

namespace moe_ep::testing {
namespace {

std::size_t set_soft_limit(__rlimit_resource resource, std::size_t value) {
  rlimit limit{};
  ::getrlimit(resource, &limit);
  const auto old = static_cast<std::size_t>(limit.rlim_cur);
  limit.rlim_cur = value;
  ::setrlimit(resource, &limit);
  return old;
}

}  // namespace

// A new descriptor gets the lowest free number, which must lie below the limit.
ScopedFdLimit::ScopedFdLimit(int spare) {
  std::vector<bool> used(4096);
  for (std::size_t fd = 0; fd < used.size(); ++fd) {
    used[fd] = ::fcntl(static_cast<int>(fd), F_GETFD) >= 0;
  }
  std::size_t limit = 0;
  for (int left = spare; left > 0 || (limit < used.size() && used[limit]); ++limit) {
    if (limit >= used.size() || !used[limit]) --left;
  }
  old_ = set_soft_limit(RLIMIT_NOFILE, limit);
}

ScopedFdLimit::~ScopedFdLimit() {
  set_soft_limit(RLIMIT_NOFILE, old_);
}

ScopedFileSizeLimit::ScopedFileSizeLimit(std::size_t bytes)
    : old_(set_soft_limit(RLIMIT_FSIZE, bytes)) {}

ScopedFileSizeLimit::~ScopedFileSizeLimit() {
  set_soft_limit(RLIMIT_FSIZE, old_);
}

ScopedAddressSpaceLimit::ScopedAddressSpaceLimit(std::size_t spare)
    : old_(set_soft_limit(RLIMIT_AS, virtual_bytes() + spare)) {}

ScopedAddressSpaceLimit::~ScopedAddressSpaceLimit() {
  set_soft_limit(RLIMIT_AS, old_);
}

bool deny_system_calls(std::initializer_list<long> numbers, int error) {
  std::vector<sock_filter> filter;
  filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const long number : numbers) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1));
    filter.push_back(BPF_STMT(
        BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (static_cast<unsigned>(error) & SECCOMP_RET_DATA)));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog program{};
  program.len = static_cast<unsigned short>(filter.size());
  program.filter = filter.data();
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace moe_ep::testing
