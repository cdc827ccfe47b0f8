#include "host/rows.hpp"

#include "protocol/block_scale.hpp"
#include "protocol/fp8_wire.hpp"
#include "protocol/scale_layout.hpp"

namespace moe_ep::host {
namespace {

using protocol::Codec;

Codec codec_of_format(std::int32_t format) {
  switch (format & ~protocol::kCombineFp8Wire) {
    case protocol::kCombineBf16:
      return Codec::kBf16;
    case protocol::kCombineFp16:
      return Codec::kFp16;
    default:
      return Codec::kFp32;
  }
}

// Quantises a float32 row; Format is one of block_scale.hpp's.
template <class Format>
void quantize_row(const float* sums, std::int64_t elements, std::int64_t token,
                  const CombineOutput& output) {
  constexpr std::int64_t kBlock = Format::kBlockElements;
  const std::int64_t cols = (elements + kBlock - 1) / kBlock;
  auto* values = reinterpret_cast<std::uint8_t*>(output.rows + token * output.stride);
  for (std::int64_t col = 0; col < cols; ++col) {
    const std::int64_t first = col * kBlock;
    const int count = static_cast<int>(elements - first < kBlock ? elements - first : kBlock);
    output.scales[protocol::scale_offset(output.sf_layout, token, col, cols)] =
        protocol::quantize_block<Format>(sums + first, count, output.scalar_scale,
                                         values + first / Format::kElementsPerByte);
  }
}

std::int64_t block_elements(OutputFormat format) {
  switch (format) {
    case OutputFormat::kMxfp8:
      return protocol::Mxfp8::kBlockElements;
    case OutputFormat::kMxfp4:
      return protocol::Mxfp4::kBlockElements;
    default:
      return protocol::Nvfp4::kBlockElements;
  }
}

}  // namespace

HostRows::HostRows(const Kernels& kernels, const protocol::CombineParams& params,
                   const CombineOutput& output)
    : kernels_(kernels),
      params_(params),
      output_(output),
      codec_(codec_of_format(params.format)),
      fp8_wire_((params.format & protocol::kCombineFp8Wire) != 0 &&
                protocol::fp8_wire_pays(params.elements, protocol::codec_bytes(codec_))),
      fp8_asked_((params.format & protocol::kCombineFp8Wire) != 0) {
  const bool quantised = output.format != OutputFormat::kPlain;
  if (fp8_asked_ || quantised) {
    scratch_.resize(static_cast<std::size_t>(params.elements) * sizeof(float) + 64);
  }
}

void HostRows::place(std::byte* to, const std::byte* from) {
  if (!fp8_asked_) {
    kernels_.copy(to, from, static_cast<std::size_t>(params_.row_bytes));
    return;
  }
  // Through scratch, because the row may be encoded where it lies.
  std::int64_t bytes = params_.row_bytes;
  if (fp8_wire_) {
    kernels_.fp8_encode_row(codec_, from, params_.elements, scratch_.data());
    bytes = protocol::fp8_wire_row_bytes(params_.elements);
  } else {
    kernels_.finite_or_nan_row(codec_, from, params_.elements, scratch_.data());
  }
  kernels_.copy(to, scratch_.data(), static_cast<std::size_t>(bytes));
}

std::byte* HostRows::staging(std::int32_t index) {
  while (staging_.size() <= static_cast<std::size_t>(index)) {
    staging_.push_back(
        std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(params_.row_bytes)));
  }
  return staging_[static_cast<std::size_t>(index)].get();
}

void HostRows::sum_as(Codec out_codec, const std::byte* const* rows, std::int32_t num_rows,
                      std::byte* out) {
  if (fp8_wire_) {
    kernels_.fp8_sum_rows(rows, num_rows, params_.elements, out_codec, out);
  } else {
    kernels_.sum_rows(codec_, rows, num_rows, params_.elements, out_codec, out);
  }
}

void HostRows::sum(std::int32_t token, const std::byte* const* rows, std::int32_t num_rows) {
  if (output_.format == OutputFormat::kPlain) {
    sum_as(protocol::codec_of(output_.dtype), rows, num_rows,
           output_.rows + token * output_.stride);
    return;
  }
  sum_as(Codec::kFp32, rows, num_rows, scratch_.data());
  const auto* sums = reinterpret_cast<const float*>(scratch_.data());
  switch (output_.format) {
    case OutputFormat::kMxfp8:
      quantize_row<protocol::Mxfp8>(sums, params_.elements, token, output_);
      break;
    case OutputFormat::kMxfp4:
      quantize_row<protocol::Mxfp4>(sums, params_.elements, token, output_);
      break;
    default:
      quantize_row<protocol::Nvfp4>(sums, params_.elements, token, output_);
      break;
  }
}

void clear_scale_padding(const protocol::CombineParams& params, const CombineOutput& output) {
  if (output.format == OutputFormat::kPlain) return;
  const std::int64_t block = block_elements(output.format);
  const std::int64_t cols = (params.elements + block - 1) / block;
  const std::int64_t rows = params.num_tokens;
  const std::int64_t padded_cols = protocol::scale_padded_cols(output.sf_layout, cols);
  const std::int64_t padded_rows = protocol::scale_padded_rows(output.sf_layout, rows);
  for (std::int64_t row = 0; row < padded_rows; ++row) {
    for (std::int64_t col = row < rows ? cols : 0; col < padded_cols; ++col) {
      output.scales[protocol::scale_offset(output.sf_layout, row, col, cols)] = 0;
    }
  }
}

}  // namespace moe_ep::host
