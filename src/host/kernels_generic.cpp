// Kernels in portable C++: the protocol's element functions in loops that compilers can vectorise.
//
// Sums go through a block of float32 accumulators that stays in the first-level cache, row after
// row, so that each row is read once, in order.
#include <cstring>

#include "host/kernels.hpp"
#include "protocol/quantize.hpp"
#include "protocol/reduce.hpp"

namespace moe_ep::host {
namespace {

using namespace moe_ep::protocol;

// Elements summed at a time; also a multiple of what shares an FP8 scale.
constexpr std::int64_t kSumBlock = kFp8BlockElements;

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

template <class Type>
constexpr std::int64_t kBytes = sizeof(typename Type::Bits);

template <class Type>
float load_element(const std::byte* row, std::int64_t idx) {
  return Type::to_float(load<typename Type::Bits>(row + idx * kBytes<Type>));
}

// Calls `visit` with the codec as a type.
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

template <class Out>
void store_sums(const float* sums, std::int64_t count, std::byte* out) {
  for (std::int64_t i = 0; i < count; ++i)
    store(out + i * kBytes<Out>, Out::from_float(sums[i]));
}

void copy(std::byte* dst, const std::byte* src, std::size_t bytes) {
  if (bytes != 0) std::memcpy(dst, src, bytes);
}

template <class In, class Out>
void sum_rows_as(const std::byte* const* rows, int num_rows, std::int64_t elements,
                 std::byte* out) {
  float sums[kSumBlock];
  for (std::int64_t first = 0; first < elements; first += kSumBlock) {
    const std::int64_t count = elements - first < kSumBlock ? elements - first : kSumBlock;
    const float start = num_rows == 0 ? kEmptySum : kSumIdentity;
    for (std::int64_t i = 0; i < count; ++i)
      sums[i] = start;
    for (int r = 0; r < num_rows; ++r) {
      const std::byte* row = rows[r] + first * kBytes<In>;
      for (std::int64_t i = 0; i < count; ++i)
        sums[i] = sum_next(sums[i], load_element<In>(row, i));
    }
    store_sums<Out>(sums, count, out + first * kBytes<Out>);
  }
}

void sum_rows(Codec codec, const std::byte* const* rows, int num_rows, std::int64_t elements,
              Codec out_codec, std::byte* out) {
  if (num_rows == 1 && codec == out_codec) {
    copy(out, rows[0], static_cast<std::size_t>(elements * codec_bytes(codec)));
    return;
  }
  with_codec(codec, [&](auto in) {
    with_codec(out_codec, [&](auto to) {
      sum_rows_as<decltype(in), decltype(to)>(rows, num_rows, elements, out);
    });
  });
}

template <class In>
void fp8_encode_row_as(const std::byte* src, std::int64_t elements, std::byte* wire) {
  std::byte* const scales = wire + fp8_scales_offset(elements);
  for (std::byte* pad = wire + elements; pad != scales; ++pad)
    *pad = std::byte{0};
  for (std::int64_t block = 0; block < fp8_num_blocks(elements); ++block) {
    const std::int64_t first = block * kFp8BlockElements;
    const std::int64_t rest = elements - first;
    const std::int64_t end = first + (rest < kFp8BlockElements ? rest : kFp8BlockElements);
    std::uint32_t amax = 0;
    for (std::int64_t i = first; i < end; ++i) {
      const std::uint32_t bits = fp8_amax_bits(load_element<In>(src, i));
      amax = bits > amax ? bits : amax;
    }
    const float scale = fp8_scale(amax);
    const Fp8Encoder encoder = fp8_encoder(scale);
    for (std::int64_t i = first; i < end; ++i) {
      wire[i] = static_cast<std::byte>(fp8_encode(load_element<In>(src, i), encoder));
    }
    store(scales + 4 * block, scale);
  }
}

void fp8_encode_row(Codec codec, const std::byte* src, std::int64_t elements, std::byte* wire) {
  with_codec(codec, [&](auto in) { fp8_encode_row_as<decltype(in)>(src, elements, wire); });
}

template <class Out>
void fp8_sum_rows_as(const std::byte* const* wires, int num_rows, std::int64_t elements,
                     std::byte* out) {
  float sums[kFp8BlockElements];
  const std::int64_t scales_offset = fp8_scales_offset(elements);
  for (std::int64_t block = 0; block < fp8_num_blocks(elements); ++block) {
    const std::int64_t first = block * kFp8BlockElements;
    const std::int64_t rest = elements - first;
    const std::int64_t count = rest < kFp8BlockElements ? rest : kFp8BlockElements;
    const auto scale_of = [&](int r) { return load<float>(wires[r] + scales_offset + 4 * block); };
    float max_scale = 0.0f;
    for (int r = 0; r < num_rows; ++r) {
      const float scale = scale_of(r);
      if (scale > max_scale) max_scale = scale;
    }
    const float lift = fp8_lift(max_scale);
    const float start = num_rows == 0 ? kEmptySum : kSumIdentity;
    for (std::int64_t i = 0; i < count; ++i)
      sums[i] = start;
    for (int r = 0; r < num_rows; ++r) {
      const float scale = mul_rn(scale_of(r), lift);
      const std::byte* codes = wires[r] + first;
      for (std::int64_t i = 0; i < count; ++i) {
        sums[i] = sum_next(sums[i], fp8_decode(static_cast<E4M3::Bits>(codes[i]), scale));
      }
    }
    for (std::int64_t i = 0; i < count; ++i)
      sums[i] = fp8_unlift(sums[i], lift);
    store_sums<Out>(sums, count, out + first * kBytes<Out>);
  }
}

void fp8_sum_rows(const std::byte* const* wires, int num_rows, std::int64_t elements,
                  Codec out_codec, std::byte* out) {
  with_codec(out_codec,
             [&](auto to) { fp8_sum_rows_as<decltype(to)>(wires, num_rows, elements, out); });
}

void finite_or_nan_row(Codec codec, const std::byte* src, std::int64_t elements, std::byte* dst) {
  with_codec(codec, [&](auto in) {
    using In = decltype(in);
    for (std::int64_t i = 0; i < elements; ++i) {
      const auto bits = load<typename In::Bits>(src + i * kBytes<In>);
      store(dst + i * kBytes<In>, finite_or_nan<In>(bits));
    }
  });
}

}  // namespace

const Kernels& generic_kernels() {
  static constexpr Kernels kTable{
      .name = "generic",
      .copy = copy,
      .copy_streaming = copy,
      .sum_rows = sum_rows,
      .fp8_encode_row = fp8_encode_row,
      .fp8_sum_rows = fp8_sum_rows,
      .finite_or_nan_row = finite_or_nan_row,
  };
  return kTable;
}

}  // namespace moe_ep::host
