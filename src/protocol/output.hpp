// Where a combine's sums go and in which form.
#pragma once

#include <cstddef>
#include <cstdint>

#include <moe_ep/types.hpp>

namespace moe_ep {

enum class OutputFormat : std::uint8_t { kPlain, kMxfp8, kMxfp4, kNvfp4 };

struct CombineOutput {
  std::byte* rows = nullptr;
  std::int64_t stride = 0;  // bytes between rows
  DType dtype{};            // of a plain output
  OutputFormat format = OutputFormat::kPlain;
  std::uint8_t* scales = nullptr;
  SfLayout sf_layout = SfLayout::kLinear;
  float scalar_scale = 1.0f;
};

}  // namespace moe_ep
