// Sentinels: the pattern that an armed landing word holds, which no payload word may equal.
//
// A payload word that happens to equal it is sent as a substitute that means the same:
//
// | words | sentinel | substitute | what changes |
// |---|---|---|---|
// | kBf16 | ffffffff, two NaNs | 7fff7fff | the sign of NaNs |
// | kFp8 | ffffffff, four e4m3 NaNs | 7f7f7f7f | the sign of NaNs |
// | kFp4 | 88888888, eight e2m1 -0 | 88888880 | the sign of one zero (e2m1 has no NaN) |
//
// Ids, weights and scales have no pattern to spare (an e8m0 scale has one NaN, 0xff); they travel as
// tags (lamport.hpp). The last word of a row whose bytes are no multiple of 4 is padded with zeros,
// which makes it unlike every sentinel.
#pragma once

#include <cstdint>

#include <moe_ep/types.hpp>

namespace moe_ep::protocol {

// What the 32-bit words of a row are made of.
enum class DataWords : std::uint8_t { kBf16, kFp8, kFp4 };

MOE_EP_HD constexpr std::uint32_t sentinel_of(DataWords words) {
  return words == DataWords::kFp4 ? 0x88888888u : 0xffffffffu;
}

// The word that travels in place of the sentinel.
MOE_EP_HD constexpr std::uint32_t substitute_of(DataWords words) {
  return words == DataWords::kBf16 ? 0x7fff7fffu
         : words == DataWords::kFp8 ? 0x7f7f7f7fu
                                    : 0x88888880u;
}

// `word` as it travels.
MOE_EP_HD constexpr std::uint32_t canonical(std::uint32_t word, DataWords words) {
  return word == sentinel_of(words) ? substitute_of(words) : word;
}

}  // namespace moe_ep::protocol
