/// @file
/// RankMask: a set of ranks as four 64-bit words. Bit i of word i / 64 is rank i.
///
/// Freestanding; shared by host and device code. The same four words are what
/// `moe_a2a_active_rank_mask` returns as a CPU uint64 tensor.
#pragma once

#include <moe_ep/types.hpp>

namespace moe_ep {

/// Words of a rank mask; covers kMaxRanks ranks.
inline constexpr int kRankMaskWords = kMaxRanks / 64;

struct RankMask {
  std::uint64_t words[kRankMaskWords] = {};

  /// The set {0, ..., num_ranks - 1}.
  static MOE_EP_HD constexpr RankMask first(int num_ranks) {
    RankMask mask;
    for (int word = 0; word < kRankMaskWords; ++word) {
      const int bits = num_ranks - 64 * word;
      mask.words[word] = bits >= 64 ? ~0ull : bits > 0 ? (1ull << bits) - 1 : 0;
    }
    return mask;
  }

  MOE_EP_HD constexpr bool test(int rank) const {
    return (words[rank / 64] >> (rank % 64) & 1) != 0;
  }
  MOE_EP_HD constexpr void set(int rank) { words[rank / 64] |= 1ull << (rank % 64); }
  MOE_EP_HD constexpr void reset(int rank) { words[rank / 64] &= ~(1ull << (rank % 64)); }

  MOE_EP_HD constexpr bool empty() const {
    return (words[0] | words[1] | words[2] | words[3]) == 0;
  }

  MOE_EP_HD constexpr int count() const {
    int total = 0;
    for (int word = 0; word < kRankMaskWords; ++word) {
      for (std::uint64_t bits = words[word]; bits != 0; bits &= bits - 1)
        ++total;
    }
    return total;
  }

  friend MOE_EP_HD constexpr RankMask operator&(RankMask a, const RankMask& b) {
    for (int word = 0; word < kRankMaskWords; ++word)
      a.words[word] &= b.words[word];
    return a;
  }
  friend MOE_EP_HD constexpr RankMask operator|(RankMask a, const RankMask& b) {
    for (int word = 0; word < kRankMaskWords; ++word)
      a.words[word] |= b.words[word];
    return a;
  }
  /// Set difference: the ranks of `a` that are not in `b`.
  friend MOE_EP_HD constexpr RankMask operator-(RankMask a, const RankMask& b) {
    for (int word = 0; word < kRankMaskWords; ++word)
      a.words[word] &= ~b.words[word];
    return a;
  }
  friend MOE_EP_HD constexpr bool operator==(const RankMask& a, const RankMask& b) {
    for (int word = 0; word < kRankMaskWords; ++word) {
      if (a.words[word] != b.words[word]) return false;
    }
    return true;
  }
  friend MOE_EP_HD constexpr bool operator!=(const RankMask& a, const RankMask& b) {
    return !(a == b);
  }

  /// Calls `visit(rank)` for every member, ascending.
  template <class Visit>
  MOE_EP_HD constexpr void for_each(Visit&& visit) const {
    for (int word = 0; word < kRankMaskWords; ++word) {
      for (std::uint64_t bits = words[word]; bits != 0; bits &= bits - 1) {
#if defined(__CUDA_ARCH__)
        visit(64 * word + __ffsll(static_cast<long long>(bits)) - 1);
#else
        visit(64 * word + __builtin_ctzll(bits));
#endif
      }
    }
  }
};

}  // namespace moe_ep
