// Vectors of elements for the AVX2 kernels: loading, storing and converting.
//
// For kernels_avx2.cpp and fp8_avx2.cpp alone, which are compiled with AVX2 and F16C enabled and
// run only where the CPU has them. They must not call an inline function of a shared header: the
// linker keeps one copy of such a function for the whole library, and that copy could be theirs,
// with AVX2 in it. Hence the anonymous namespace here; of src/protocol they use constants only.
//
// The instructions differ from src/protocol, the bits do not: bfloat16 is rounded by the same
// integer steps, binary16 by F16C, which implements the same rounding.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "host/kernels.hpp"

namespace moe_ep::host {
namespace {

// Elements in two vectors of float32: the unit of all loops.
constexpr std::int64_t kUnit = 16;

struct Pair {
  __m256 lo, hi;
};

inline __m256i load256(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline __m128i load128(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
inline void store256(std::byte* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}
inline __m256i splat(std::uint32_t value) {
  return _mm256_set1_epi32(static_cast<int>(value));
}

// Float32 to bfloat16 in the upper half of each 32-bit lane, for elements that are not NaN.
inline __m256i round_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), splat(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, splat(0x7fff)), odd);
}
// The same for any element.
inline __m256i round_bf16_or_nan(__m256 value) {
  const __m256i quiet = _mm256_or_si256(_mm256_castps_si256(value), splat(0x400000));
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(round_bf16(value)),
                                              _mm256_castsi256_ps(quiet),
                                              _mm256_cmp_ps(value, value, _CMP_UNORD_Q)));
}
inline Pair round_bf16(Pair value) {
  Pair rounded;
  if (_mm256_movemask_ps(_mm256_cmp_ps(value.lo, value.hi, _CMP_UNORD_Q)) == 0) [[likely]] {
    rounded.lo = _mm256_castsi256_ps(round_bf16(value.lo));
    rounded.hi = _mm256_castsi256_ps(round_bf16(value.hi));
  } else {
    rounded.lo = _mm256_castsi256_ps(round_bf16_or_nan(value.lo));
    rounded.hi = _mm256_castsi256_ps(round_bf16_or_nan(value.hi));
  }
  return rounded;
}

// Codecs: 16 elements to and from two vectors, in order.
struct Bf16 {
  static constexpr std::int64_t kBytes = 2;

  static Pair load(const std::byte* from) {
    const __m256i lo = _mm256_cvtepu16_epi32(load128(from));
    const __m256i hi = _mm256_cvtepu16_epi32(load128(from + 16));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
  }
  static void store(std::byte* to, Pair value) {
    value = round_bf16(value);
    const __m256i packed =
        _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(value.lo), 16),
                            _mm256_srli_epi32(_mm256_castps_si256(value.hi), 16));
    store256(to, _mm256_permute4x64_epi64(packed, 0xd8));
  }
};

// Bfloat16 as elements of even and of odd index: the cheapest way there and back.
struct Bf16EvenOdd {
  static constexpr std::int64_t kBytes = 2;

  static Pair load(const std::byte* from) {
    const __m256i both = load256(from);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(both, splat(0xffff0000u)))};
  }
  static void store(std::byte* to, Pair value) {
    value = round_bf16(value);
    store256(to, _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(value.lo), 16),
                                    _mm256_castps_si256(value.hi), 0xaa));
  }
};

struct Fp16 {
  static constexpr std::int64_t kBytes = 2;

  static Pair load(const std::byte* from) {
    return {_mm256_cvtph_ps(load128(from)), _mm256_cvtph_ps(load128(from + 16))};
  }
  static void store(std::byte* to, Pair value) {
    const __m128i lo = _mm256_cvtps_ph(value.lo, _MM_FROUND_TO_NEAREST_INT);
    const __m128i hi = _mm256_cvtps_ph(value.hi, _MM_FROUND_TO_NEAREST_INT);
    store256(to, _mm256_set_m128i(hi, lo));
  }
  // The float32 bits of one element.
  static std::uint32_t widen(std::uint32_t code) {
    const __m128 value = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(code)));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_castps_si128(value)));
  }
};

struct Fp32 {
  static constexpr std::int64_t kBytes = 4;

  static Pair load(const std::byte* from) {
    return {_mm256_castsi256_ps(load256(from)), _mm256_castsi256_ps(load256(from + 32))};
  }
  static void store(std::byte* to, Pair value) {
    store256(to, _mm256_castps_si256(value.lo));
    store256(to + 32, _mm256_castps_si256(value.hi));
  }
};

template <class Visit>
void with_codec(Codec codec, Visit&& visit) {
  switch (codec) {
    case Codec::kBf16:
      return visit(Bf16{});
    case Codec::kFp16:
      return visit(Fp16{});
    case Codec::kFp32:
      return visit(Fp32{});
  }
}

}  // namespace
}  // namespace moe_ep::host
