#include "memory/process_identity.hpp"

#include <pthread.h>

#include <fstream>

#include "comm/random.hpp"

namespace moe_ep::memory {
namespace {

ProcessToken make_token() {
  return {detail::random_u64(), detail::random_u64()};
}

ProcessToken& token_storage() {
  static ProcessToken token = [] {
    // A child starts with one thread, which is in fork(): nobody reads while this writes.
    ::pthread_atfork(nullptr, nullptr, [] { token_storage() = make_token(); });
    return make_token();
  }();
  return token;
}

}  // namespace

std::string host_identity() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

ProcessToken process_token() {
  return token_storage();
}

}  // namespace moe_ep::memory
