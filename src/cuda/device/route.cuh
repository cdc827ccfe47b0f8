// Routing by ballots: which ranks the tokens of a warp visit, and in which rows.
//
// A lane holds one token and a bit for every rank it visits; a ballot over one rank's bit gives the
// tokens of the warp that go there, in order. The row of a token at a rank is the number of earlier
// tokens that go there: those of earlier groups of 32, plus the lower lanes' bits of the ballot.
// The result is that of protocol::route_tokens, without a counter that anybody races for.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "cuda/device/vector.cuh"
#include "protocol/step.hpp"

namespace moe_ep::cuda {

// Division of numbers from 0 to 2^31 - 1 by one known to the host. With m = floor((2^64 - 1) / d)
// is (n + 1) * m = (n + 1) / d * 2^64 - e, 0 < e < 2^64 / d, so its upper half is n / d rounded
// down.
struct FastDivide {
  std::int32_t divisor = 1;
  std::uint64_t magic = ~std::uint64_t{0};

  static constexpr FastDivide make(std::int64_t divisor) {
    return {static_cast<std::int32_t>(divisor),
            ~std::uint64_t{0} / static_cast<std::uint64_t>(divisor)};
  }
  static __device__ __forceinline__ std::int32_t divide(std::int32_t value, std::uint64_t magic) {
    const std::uint64_t above = static_cast<std::uint32_t>(value) + 1u;
    const std::uint64_t low = above * static_cast<std::uint32_t>(magic);
    return static_cast<std::int32_t>((above * (magic >> 32) + (low >> 32)) >> 32);
  }
  __device__ __forceinline__ std::int32_t operator()(std::int32_t value) const {
    return divide(value, magic);
  }
};

// protocol::Ownership::owner without divisions.
struct FastOwnership {
  std::int32_t num_experts = 0;
  std::int32_t num_large = 0;  // experts of the ranks that own one more
  std::int32_t rem = 0;
  FastDivide large;
  FastDivide small;

  static constexpr FastOwnership make(const protocol::Ownership& ownership) {
    FastOwnership fast;
    fast.num_experts = ownership.num_experts;
    fast.num_large = ownership.rem * (ownership.base + 1);
    fast.rem = ownership.rem;
    fast.large = FastDivide::make(ownership.base + 1);
    fast.small = FastDivide::make(ownership.base > 0 ? ownership.base : 1);
    return fast;
  }
  __device__ __forceinline__ bool is_void(std::int32_t id) const {
    return static_cast<std::uint32_t>(id) >= static_cast<std::uint32_t>(num_experts);
  }
  __device__ __forceinline__ bool is_void(std::int64_t id) const {
    return static_cast<std::uint64_t>(id) >= static_cast<std::uint64_t>(num_experts);
  }
  __device__ __forceinline__ std::int32_t owner(std::int32_t id) const {
    const bool of_large = id < num_large;
    const std::int32_t quotient =
        FastDivide::divide(of_large ? id : id - num_large, of_large ? large.magic : small.magic);
    return of_large ? quotient : rem + quotient;
  }
};

// A set of ranks as words of 32; one word serves groups of up to 32 ranks.
template <int Words>
struct RankBits {
  std::uint32_t words[Words] = {};

  // Adds `rank` if `exists`. Without a branch: lanes differ.
  __device__ __forceinline__ void set(std::int32_t rank, bool exists = true) {
    const std::uint32_t bit = exists ? 1u << (static_cast<std::uint32_t>(rank) % 32) : 0;
#pragma unroll
    for (int word = 0; word < Words; ++word) {
      if (Words == 1 || rank / 32 == word) words[word] |= bit;
    }
  }
  __device__ __forceinline__ bool test(std::int32_t rank) const {
    if constexpr (Words == 1) {
      return (words[0] >> rank & 1) != 0;
    } else {
      bool found = false;
#pragma unroll
      for (int word = 0; word < Words; ++word) {
        if (rank / 32 == word) found = (words[word] >> (rank % 32) & 1) != 0;
      }
      return found;
    }
  }
  __device__ __forceinline__ RankBits without(std::int32_t rank) const {
    RankBits others = *this;
    if constexpr (Words == 1) {
      others.words[0] &= ~(1u << rank);
    } else {
#pragma unroll
      for (int word = 0; word < Words; ++word) {
        if (rank / 32 == word) others.words[word] &= ~(1u << (rank % 32));
      }
    }
    return others;
  }
  // Removes the lowest rank and returns it; -1: there is none.
  __device__ __forceinline__ std::int32_t take_lowest() {
    std::int32_t rank = -1;
#pragma unroll
    for (int word = 0; word < Words; ++word) {
      if (rank >= 0 || words[word] == 0) continue;
      rank = 32 * word + __ffs(static_cast<int>(words[word])) - 1;
      words[word] &= words[word] - 1;
    }
    return rank;
  }
};

template <int Words>
__device__ __forceinline__ RankBits<Words> to_bits(const RankMask* mask) {
  RankBits<Words> bits;
#pragma unroll
  for (int word = 0; word < Words; ++word) {
    bits.words[word] = static_cast<std::uint32_t>(mask->words[word / 2] >> (word % 2 * 32));
  }
  return bits;
}

// Adds the ranks that own one of `top_k` ids, if there are any. Lanes have rows of their own, so a
// load costs the same whatever its width: `Width` bytes hold several ids.
template <class Id, int Width, int Words>
__device__ __forceinline__ void add_owners(RankBits<Words>& ranks, const FastOwnership& ownership,
                                           const std::byte* ids, std::int32_t top_k, bool exist) {
  constexpr int kIds = Width / static_cast<int>(sizeof(Id));  // of a vector
  constexpr int kBatch = kIds > 4 ? 1 : 8 / kIds;             // vectors on their way at once
  for (std::int32_t first = 0; first < top_k; first += kBatch * kIds) {
    uint4 batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      batch[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
      if (exist && first + i * kIds < top_k) {
        const std::byte* from = ids + (first + i * kIds) * static_cast<int>(sizeof(Id));
        if constexpr (Width == 4) {
          batch[i].x = *reinterpret_cast<const std::uint32_t*>(from);  // the next ones are in L1
        } else {
          batch[i] = load_vector<Width>(from);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const std::uint32_t words[] = {batch[i].x, batch[i].y, batch[i].z, batch[i].w};
#pragma unroll
      for (int k = 0; k < kIds; ++k) {
        Id id;
        if constexpr (sizeof(Id) == 8) {
          id = static_cast<Id>(std::uint64_t{words[2 * k + 1]} << 32 | words[2 * k]);
        } else {
          id = static_cast<Id>(words[k]);
        }
        ranks.set(ownership.owner(static_cast<std::int32_t>(id)), !ownership.is_void(id));
      }
    }
  }
}

// The active ranks that `token` visits; none unless it exists. `width` divides the addresses, the
// stride and the bytes of the rows of ids.
template <int Words>
__device__ __forceinline__ RankBits<Words> ranks_of_token(const protocol::DispatchParams& params,
                                                          const FastOwnership& ownership,
                                                          const RankBits<Words>& active,
                                                          std::int32_t token, bool exists,
                                                          std::int32_t width = 4) {
  RankBits<Words> ranks;
  const std::byte* ids = params.topk_ids + token * params.topk_ids_stride;
  if (params.wide_ids) {
    if (width == 16) {
      add_owners<std::int64_t, 16>(ranks, ownership, ids, params.top_k, exists);
    } else {
      add_owners<std::int64_t, 8>(ranks, ownership, ids, params.top_k, exists);
    }
  } else if (width == 16) {
    add_owners<std::int32_t, 16>(ranks, ownership, ids, params.top_k, exists);
  } else if (width == 8) {
    add_owners<std::int32_t, 8>(ranks, ownership, ids, params.top_k, exists);
  } else {
    add_owners<std::int32_t, 4>(ranks, ownership, ids, params.top_k, exists);
  }
#pragma unroll
  for (int word = 0; word < Words; ++word)
    ranks.words[word] &= active.words[word];
  return ranks;
}

// Calls `visit(word, bit, ballot)` for every rank 32 * word + bit: the lanes of the warp whose
// token goes there. `word` is an integral constant, so that arrays indexed with it stay in
// registers.
template <int Words, class Visit>
__device__ __forceinline__ void for_each_ballot(const RankBits<Words>& ranks,
                                                std::int32_t num_ranks, Visit&& visit) {
  const auto visit_word = [&](auto word) {
    constexpr int kWord = decltype(word)::value;
    const std::int32_t here = num_ranks - 32 * kWord < 32 ? num_ranks - 32 * kWord : 32;
    for (std::int32_t bit = 0; bit < here; ++bit) {
      visit(word, bit, __ballot_sync(~0u, ranks.words[kWord] >> bit & 1));
    }
  };
  [&]<int... Word>(std::integer_sequence<int, Word...>) {
    (visit_word(std::integral_constant<int, Word>{}), ...);
  }(std::make_integer_sequence<int, Words>{});
}

// Calls `visit(rank)` for every rank of the set, ascending.
template <int Words, class Visit>
__device__ __forceinline__ void for_each_rank(const RankBits<Words>& ranks, Visit&& visit) {
#pragma unroll
  for (int word = 0; word < Words; ++word) {
    for (std::uint32_t bits = ranks.words[word]; bits != 0; bits &= bits - 1) {
      visit(32 * word + __ffs(static_cast<int>(bits)) - 1);
    }
  }
}

}  // namespace moe_ep::cuda
