// Kernels for x86 CPUs with AVX2 and F16C: copies and sums. avx2_vectors.hpp tells what this file
// may and may not do.
#include <cpuid.h>

#include <cstring>

#include "host/avx2_vectors.hpp"
#include "host/fp8_avx2.hpp"
#include "host/kernels.hpp"

namespace moe_ep::host {
namespace {

// Copies of at least one vector. The last one may overlap its predecessor.
//
// Not memcpy: the C library copies rows of this size with `rep movsb`, which takes 25 times as long
// on AMD Zen 3 when the destination lies 1 to 63 bytes above the source modulo 4096. Rows of 14 KB
// at 16-byte alignment do that often.
void copy_long(std::byte* dst, const std::byte* src, std::size_t bytes) {
  constexpr std::size_t kVector = 32;
  std::size_t at = 0;
  for (; at + 4 * kVector <= bytes; at += 4 * kVector) {
    const __m256i a = load256(src + at);
    const __m256i b = load256(src + at + kVector);
    const __m256i c = load256(src + at + 2 * kVector);
    const __m256i d = load256(src + at + 3 * kVector);
    store256(dst + at, a);
    store256(dst + at + kVector, b);
    store256(dst + at + 2 * kVector, c);
    store256(dst + at + 3 * kVector, d);
  }
  for (; at + kVector <= bytes; at += kVector) {
    store256(dst + at, load256(src + at));
  }
  if (at != bytes) store256(dst + bytes - kVector, load256(src + bytes - kVector));
}

void copy(std::byte* dst, const std::byte* src, std::size_t bytes) {
  if (bytes >= 32) {
    copy_long(dst, src, bytes);
  } else if (bytes != 0) {
    std::memcpy(dst, src, bytes);
  }
}

void copy_streaming(std::byte* dst, const std::byte* src, std::size_t bytes) {
  constexpr std::size_t kVector = 32;
  if (bytes < 8 * kVector) return copy(dst, src, bytes);
  store256(dst, load256(src));  // up to where streaming stores are aligned
  std::size_t at = kVector - reinterpret_cast<std::uintptr_t>(dst) % kVector;
  const auto stream = [&](std::size_t to, __m256i value) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + to), value);
  };
  for (; at + 4 * kVector <= bytes; at += 4 * kVector) {
    const __m256i a = load256(src + at);
    const __m256i b = load256(src + at + kVector);
    const __m256i c = load256(src + at + 2 * kVector);
    const __m256i d = load256(src + at + 3 * kVector);
    stream(at, a);
    stream(at + kVector, b);
    stream(at + 2 * kVector, c);
    stream(at + 3 * kVector, d);
  }
  for (; at + kVector <= bytes; at += kVector) {
    stream(at, load256(src + at));
  }
  store256(dst + bytes - kVector, load256(src + bytes - kVector));
  _mm_sfence();  // streaming stores are not ordered by a later release store
}

// Sums `Units` units from element `first` on. `NumRows` 0: as many rows as num_rows says.
template <class In, class Out, int NumRows, int Units>
inline void sum_units(const std::byte* const* rows, int num_rows, std::int64_t first,
                      std::byte* out) {
  const int count = NumRows != 0 ? NumRows : num_rows;
  Pair sums[Units];
  for (int u = 0; u < Units; ++u)
    sums[u] = In::load(rows[0] + (first + u * kUnit) * In::kBytes);
  for (int r = 1; r < count; ++r) {
    for (int u = 0; u < Units; ++u) {
      const Pair next = In::load(rows[r] + (first + u * kUnit) * In::kBytes);
      sums[u].lo = _mm256_add_ps(sums[u].lo, next.lo);
      sums[u].hi = _mm256_add_ps(sums[u].hi, next.hi);
    }
  }
  for (int u = 0; u < Units; ++u)
    Out::store(out + (first + u * kUnit) * Out::kBytes, sums[u]);
}

// Rows of at least one unit. The last unit may overlap the one before it and repeats its sums.
template <class In, class Out, int NumRows>
void sum_long_rows(const std::byte* const* rows, int num_rows, std::int64_t elements,
                   std::byte* out) {
  constexpr int kUnits = 4;
  std::int64_t first = 0;
  for (; first + kUnits * kUnit <= elements; first += kUnits * kUnit) {
    sum_units<In, Out, NumRows, kUnits>(rows, num_rows, first, out);
  }
  for (; first + kUnit <= elements; first += kUnit) {
    sum_units<In, Out, NumRows, 1>(rows, num_rows, first, out);
  }
  if (first != elements) sum_units<In, Out, NumRows, 1>(rows, num_rows, elements - kUnit, out);
}

template <class In, class Out>
void sum_short_rows(const std::byte* const* rows, int num_rows, std::int64_t elements,
                    std::byte* out) {
  std::byte padded[kMaxSumRows][kUnit * In::kBytes] = {};
  const std::byte* padded_rows[kMaxSumRows] = {padded[0]};
  for (int r = 0; r < num_rows; ++r) {
    std::memcpy(padded[r], rows[r], static_cast<std::size_t>(elements * In::kBytes));
    padded_rows[r] = padded[r];
  }
  std::byte sums[kUnit * Out::kBytes];
  sum_units<In, Out, 0, 1>(padded_rows, num_rows, 0, sums);
  std::memcpy(out, sums, static_cast<std::size_t>(elements * Out::kBytes));
}

template <class In, class Out>
void sum_rows_as(const std::byte* const* rows, int num_rows, std::int64_t elements,
                 std::byte* out) {
  if (elements < kUnit) return sum_short_rows<In, Out>(rows, num_rows, elements, out);
  switch (num_rows) {
    case 1:
      return sum_long_rows<In, Out, 1>(rows, num_rows, elements, out);
    case 2:
      return sum_long_rows<In, Out, 2>(rows, num_rows, elements, out);
    default:
      return sum_long_rows<In, Out, 0>(rows, num_rows, elements, out);
  }
}

void sum_rows(Codec codec, const std::byte* const* rows, int num_rows, std::int64_t elements,
              Codec out_codec, std::byte* out) {
  const auto out_bytes = static_cast<std::size_t>(elements) * (out_codec == Codec::kFp32 ? 4 : 2);
  if (elements == 0) return;
  if (num_rows == 0) {
    std::memset(out, 0, out_bytes);
  } else if (num_rows == 1 && codec == out_codec) {
    copy(out, rows[0], out_bytes);
  } else if (codec == Codec::kBf16 && out_codec == Codec::kBf16) {
    sum_rows_as<Bf16EvenOdd, Bf16EvenOdd>(rows, num_rows, elements, out);
  } else {
    with_codec(codec, [&](auto in) {
      with_codec(out_codec, [&](auto to) {
        sum_rows_as<decltype(in), decltype(to)>(rows, num_rows, elements, out);
      });
    });
  }
}

bool cpu_has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

const Kernels* avx2_kernels() {
  // "avx2" also says that the system saves the wide registers.
  static const bool kSupported = __builtin_cpu_supports("avx2") != 0 && cpu_has_f16c();
  static const Kernels kTable{
      .name = "avx2",
      .copy = copy,
      .copy_streaming = copy_streaming,
      .sum_rows = sum_rows,
      .fp8_encode_row = fp8_encode_row_avx2,
      .fp8_sum_rows = fp8_sum_rows_avx2,
      .finite_or_nan_row = generic_kernels().finite_or_nan_row,
  };
  return kSupported ? &kTable : nullptr;
}

}  // namespace moe_ep::host
