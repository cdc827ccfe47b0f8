// Random bytes of the kernel, never of a seeded generator: two programs seeded alike must not
// choose the same socket name.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/system_error.hpp"

namespace moe_ep::detail {

inline void fill_random(void* data, std::size_t bytes) {
  auto* cursor = static_cast<unsigned char*>(data);
  while (bytes > 0) {
    const auto got = ::getrandom(cursor, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("random numbers", "getrandom", errno);
    cursor += got;
    bytes -= static_cast<std::size_t>(got);
  }
}

inline std::uint64_t random_u64() {
  std::uint64_t value = 0;
  while (value == 0)
    fill_random(&value, sizeof value);  // 0 means "none" everywhere
  return value;
}

inline std::string random_hex(std::size_t bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string raw(bytes, '\0');
  fill_random(raw.data(), raw.size());
  std::string text;
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace moe_ep::detail
