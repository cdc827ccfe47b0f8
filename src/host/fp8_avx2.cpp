// Kernels for x86 CPUs with AVX2 and F16C: the FP8 wire. avx2_vectors.hpp tells what this file may
// and may not do; protocol/fp8_wire.hpp defines what is computed.
#include "host/fp8_avx2.hpp"

#include <cstring>
#include <type_traits>

#include "host/avx2_vectors.hpp"
#include "protocol/fp8_wire.hpp"

namespace moe_ep::host {
namespace {

// Bfloat16 in the order that unpacking leaves, which packing restores.
struct Bf16Unpacked {
  static constexpr std::int64_t kBytes = 2;

  static Pair load(const std::byte* from) {
    const __m256i both = load256(from);
    const __m256i zero = _mm256_setzero_si256();
    return {_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, both)),
            _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, both))};
  }
  static std::uint32_t widen(std::uint32_t code) { return code << 16; }
};

using protocol::kFp8BlockElements;
constexpr std::int64_t kBlockUnits = kFp8BlockElements / kUnit;

// The largest of the lanes, which are not negative.
inline std::uint32_t largest(__m256i lanes) {
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
}

inline __m256i magnitudes(__m256 value) {
  return _mm256_and_si256(_mm256_castps_si256(value), splat(protocol::kMagnitudeMask));
}

// Magnitude bits of the block's largest element. Codecs of 16 bits compare what is stored, since
// magnitudes order like integers.
template <class In>
inline std::uint32_t block_amax(const std::byte* src) {
  __m256i amax = _mm256_setzero_si256();
  if constexpr (In::kBytes == 2) {
    for (std::int64_t u = 0; u < kBlockUnits; ++u) {
      const __m256i stored = load256(src + u * kUnit * In::kBytes);
      amax = _mm256_max_epi16(amax, _mm256_and_si256(stored, _mm256_set1_epi16(0x7fff)));
    }
    // Widen pairs of lanes to 32 bits; what is left is one element's code.
    const __m256i even = _mm256_and_si256(amax, splat(0xffff));
    return In::widen(largest(_mm256_max_epi32(even, _mm256_srli_epi32(amax, 16))));
  } else {
    for (std::int64_t u = 0; u < kBlockUnits; ++u) {
      const Pair value = In::load(src + u * kUnit * In::kBytes);
      amax = _mm256_max_epi32(amax, _mm256_max_epi32(magnitudes(value.lo), magnitudes(value.hi)));
    }
    return largest(amax);
  }
}

// The same among finite elements. Apart, since it is rarely needed.
template <class In>
[[gnu::noinline]] std::uint32_t block_finite_amax(const std::byte* src) {
  const auto finite = [](__m256 value) {
    const __m256i mag = magnitudes(value);
    return _mm256_and_si256(mag, _mm256_cmpgt_epi32(splat(protocol::kInfinityBits), mag));
  };
  __m256i amax = _mm256_setzero_si256();
  for (std::int64_t u = 0; u < kBlockUnits; ++u) {
    const Pair value = In::load(src + u * kUnit * In::kBytes);
    amax = _mm256_max_epi32(amax, _mm256_max_epi32(finite(value.lo), finite(value.hi)));
  }
  return largest(amax);
}

// e4m3 codes, signs left out, of elements that do not exceed 448 by more than rounding. Adding a
// power of two whose ulp is the spacing of codes at the element rounds as e4m3 does; the codes
// count those ulps, from the smallest normal exponent on 8 for each exponent.
inline __m256i encode_e4m3(__m256 scaled) {
  const __m256i mag = magnitudes(scaled);
  const __m256i smallest = splat((127u + 14) << 23);  // 2^14, of ulp 2^-9
  const __m256i exponent = _mm256_and_si256(mag, splat(protocol::kInfinityBits));
  const __m256i rounder = _mm256_max_epi32(_mm256_add_epi32(exponent, splat(20u << 23)), smallest);
  const __m256 rounded = _mm256_add_ps(_mm256_castsi256_ps(mag), _mm256_castsi256_ps(rounder));
  const __m256i ulps = _mm256_sub_epi32(_mm256_castps_si256(rounded), rounder);
  return _mm256_add_epi32(ulps, _mm256_srli_epi32(_mm256_sub_epi32(rounder, smallest), 20));
}

// 32 codes in the order of the elements. Packing works on the halves of vectors apart, which leaves
// groups of four codes out of place.
template <class In>
inline __m256i in_order(__m256i packed) {
  if constexpr (std::is_same_v<In, Bf16Unpacked>) return _mm256_permute4x64_epi64(packed, 0xd8);
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// `Careful`: with elements that are not finite, or that have to be lifted first.
template <class In, bool Careful>
[[gnu::noinline]] void encode_elements(const std::byte* src, float lift, float inverse,
                                       std::byte* codes) {
  const __m256 inverses = _mm256_set1_ps(inverse);
  const auto scaled = [&](__m256 value) {
    if constexpr (Careful) value = _mm256_mul_ps(value, _mm256_set1_ps(lift));
    return _mm256_mul_ps(value, inverses);
  };
  for (std::int64_t first = 0; first < kFp8BlockElements; first += 2 * kUnit) {
    const Pair a = In::load(src + first * In::kBytes);
    const Pair b = In::load(src + (first + kUnit) * In::kBytes);
    __m256i code = _mm256_packus_epi16(
        _mm256_packus_epi32(encode_e4m3(scaled(a.lo)), encode_e4m3(scaled(a.hi))),
        _mm256_packus_epi32(encode_e4m3(scaled(b.lo)), encode_e4m3(scaled(b.hi))));
    // Signed packing keeps the signs of whole floats.
    const __m256i sign = _mm256_packs_epi16(
        _mm256_packs_epi32(_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)),
        _mm256_packs_epi32(_mm256_castps_si256(b.lo), _mm256_castps_si256(b.hi)));
    code = _mm256_or_si256(code, _mm256_and_si256(sign, _mm256_set1_epi8(-128)));
    if constexpr (Careful) {
      const auto not_finite = [](__m256 value) {
        return _mm256_cmpgt_epi32(magnitudes(value), splat(protocol::kInfinityBits - 1));
      };
      const __m256i nan =
          _mm256_packs_epi16(_mm256_packs_epi32(not_finite(a.lo), not_finite(a.hi)),
                             _mm256_packs_epi32(not_finite(b.lo), not_finite(b.hi)));
      code = _mm256_blendv_epi8(code, _mm256_set1_epi8(0x7f), nan);
    }
    store256(codes + first, in_order<In>(code));
  }
}

struct Scaling {
  float scale;
  float lift;
  float inverse;
  bool careful;
};

template <class In>
inline Scaling block_scaling(const std::byte* src) {
  Scaling block{0.0f, 1.0f, 1.0f, false};
  std::uint32_t amax_bits = block_amax<In>(src);
  if (amax_bits >= protocol::kInfinityBits) [[unlikely]] {
    amax_bits = block_finite_amax<In>(src);
    block.careful = true;
  }
  if (amax_bits == 0) return block;
  float amax;
  std::memcpy(&amax, &amax_bits, sizeof amax);
  block.scale = amax / 448.0f;
  if (block.scale < protocol::kFp8MinScale) block.scale = protocol::kFp8MinScale;
  if (block.scale < protocol::kFp8LiftBelow) {
    block.lift = protocol::kFp8Lift;
    block.careful = true;
  }
  block.inverse = 1.0f / (block.scale * block.lift);
  return block;
}

template <class In>
inline void encode_block(const std::byte* src, const Scaling& block, std::byte* codes) {
  if (block.careful) [[unlikely]] {
    encode_elements<In, true>(src, block.lift, block.inverse, codes);
  } else {
    encode_elements<In, false>(src, block.lift, block.inverse, codes);
  }
}

template <class In>
void encode_row(const std::byte* src, std::int64_t elements, std::byte* wire) {
  const std::int64_t whole = elements / kFp8BlockElements * kFp8BlockElements;
  std::byte* scales = wire + (elements + 3) / 4 * 4;
  Scaling block{};
  if (whole != 0) block = block_scaling<In>(src);
  for (std::int64_t first = 0; first < whole; first += kFp8BlockElements, scales += 4) {
    // The next block's divisions run beside this block's encoding.
    const std::int64_t next = first + kFp8BlockElements;
    const Scaling ahead = next < whole ? block_scaling<In>(src + next * In::kBytes) : Scaling{};
    encode_block<In>(src + first * In::kBytes, block, wire + first);
    std::memcpy(scales, &block.scale, sizeof block.scale);
    block = ahead;
  }
  const auto rest = static_cast<std::size_t>(elements - whole);
  if (rest == 0) return;
  std::byte padded[kFp8BlockElements * In::kBytes] = {};
  std::byte codes[kFp8BlockElements];
  std::memcpy(padded, src + whole * In::kBytes, rest * In::kBytes);
  block = block_scaling<In>(padded);
  encode_block<In>(padded, block, codes);
  // The code of a padded zero is zero, as is the wire's own padding.
  std::memcpy(wire + whole, codes, (rest + 3) / 4 * 4);
  std::memcpy(scales, &block.scale, sizeof block.scale);
}

// The values of 16 codes times 2^-8 * factor: an e4m3 magnitude, shifted, is a binary16 of bias 15
// instead of 7, subnormals included.
inline Pair decode_e4m3(const std::byte* codes, __m256 factor) {
  const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load128(codes)), 7);
  const __m256i mag = _mm256_and_si256(words, _mm256_set1_epi16(0x3f80));
  const __m256i nan = _mm256_cmpeq_epi16(mag, _mm256_set1_epi16(0x3f80));
  const __m256i half =
      _mm256_or_si256(_mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(0xbfff))),
                      _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
  return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), factor),
          _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), factor)};
}

// Wire rows at one block of 128 elements.
struct Fp8Block {
  const std::byte* codes[kMaxSumRows];
  float factors[kMaxSumRows];  // what decode_e4m3 takes
  bool lifted;
};

template <class Out, int NumRows, int Units>
inline void sum_units(const Fp8Block& block, int num_rows, std::int64_t first, std::byte* out) {
  const int count = NumRows != 0 ? NumRows : num_rows;
  Pair sums[Units];
  __m256 factor = _mm256_set1_ps(block.factors[0]);
  for (int u = 0; u < Units; ++u) {
    sums[u] = decode_e4m3(block.codes[0] + first + u * kUnit, factor);
  }
  for (int r = 1; r < count; ++r) {
    factor = _mm256_set1_ps(block.factors[r]);
    for (int u = 0; u < Units; ++u) {
      const Pair next = decode_e4m3(block.codes[r] + first + u * kUnit, factor);
      sums[u].lo = _mm256_add_ps(sums[u].lo, next.lo);
      sums[u].hi = _mm256_add_ps(sums[u].hi, next.hi);
    }
  }
  for (int u = 0; u < Units; ++u) {
    if (block.lifted) {
      sums[u].lo = _mm256_mul_ps(sums[u].lo, _mm256_set1_ps(protocol::kFp8Unlift));
      sums[u].hi = _mm256_mul_ps(sums[u].hi, _mm256_set1_ps(protocol::kFp8Unlift));
    }
    Out::store(out + (first + u * kUnit) * Out::kBytes, sums[u]);
  }
}

template <class Out, int NumRows>
void sum_block(Fp8Block& block, int num_rows, std::int64_t elements, std::byte* out) {
  constexpr int kUnits = 4;
  std::int64_t first = 0;
  for (; first + kUnits * kUnit <= elements; first += kUnits * kUnit) {
    sum_units<Out, NumRows, kUnits>(block, num_rows, first, out);
  }
  for (; first + kUnit <= elements; first += kUnit) {
    sum_units<Out, NumRows, 1>(block, num_rows, first, out);
  }
  if (first == elements) return;
  const auto rest = static_cast<std::size_t>(elements - first);
  std::byte padded[kMaxSumRows][kUnit] = {};
  for (int r = 0; r < num_rows; ++r) {
    std::memcpy(padded[r], block.codes[r] + first, rest);
    block.codes[r] = padded[r];
  }
  std::byte sums[kUnit * Out::kBytes];
  sum_units<Out, NumRows, 1>(block, num_rows, 0, sums);
  std::memcpy(out + first * Out::kBytes, sums, rest * Out::kBytes);
}

template <class Out, int NumRows>
void sum_wires(const std::byte* const* wires, int num_rows, std::int64_t elements, std::byte* out) {
  const std::int64_t scales_offset = (elements + 3) / 4 * 4;
  Fp8Block block;
  for (std::int64_t first = 0; first < elements; first += kFp8BlockElements) {
    float max_scale = 0.0f;
    for (int r = 0; r < num_rows; ++r) {
      float& factor = block.factors[r];
      std::memcpy(&factor, wires[r] + scales_offset + 4 * (first / kFp8BlockElements), 4);
      if (factor > max_scale) max_scale = factor;
      block.codes[r] = wires[r] + first;
    }
    block.lifted = max_scale < protocol::kFp8LiftBelow;
    const float lift = block.lifted ? protocol::kFp8Lift : 1.0f;
    // A scale is at most 2^120, so 2^8 does not overflow; powers of two leave the products' bits.
    for (int r = 0; r < num_rows; ++r) {
      block.factors[r] *= lift * 0x1p8f;
    }
    const std::int64_t rest = elements - first;
    sum_block<Out, NumRows>(block, num_rows, rest < kFp8BlockElements ? rest : kFp8BlockElements,
                            out + first * Out::kBytes);
  }
}

}  // namespace

void fp8_encode_row_avx2(Codec codec, const std::byte* src, std::int64_t elements,
                         std::byte* wire) {
  if (codec == Codec::kBf16) return encode_row<Bf16Unpacked>(src, elements, wire);
  if (codec == Codec::kFp16) return encode_row<Fp16>(src, elements, wire);
  encode_row<Fp32>(src, elements, wire);
}

void fp8_sum_rows_avx2(const std::byte* const* wires, int num_rows, std::int64_t elements,
                       Codec out_codec, std::byte* out) {
  if (elements == 0) return;
  if (num_rows == 0) {
    std::memset(out, 0, static_cast<std::size_t>(elements) * (out_codec == Codec::kFp32 ? 4 : 2));
    return;
  }
  with_codec(out_codec, [&](auto to) {
    using Out = decltype(to);
    switch (num_rows) {
      case 1:
        return sum_wires<Out, 1>(wires, num_rows, elements, out);
      case 2:
        return sum_wires<Out, 2>(wires, num_rows, elements, out);
      default:
        return sum_wires<Out, 0>(wires, num_rows, elements, out);
    }
  });
}

}  // namespace moe_ep::host
