// Where the block scales of a quantised output lie: linear, or swizzled for tensor-core loads.
//
// Scales form a matrix [rows, cols], one row per token, one column per block. The swizzled layouts
// cut it into tiles that are stored one after another, row-major: tiles of 128 x 4 (512 bytes, the
// 128 rows as 4 groups of 32 side by side) or of 8 x 4 (32 bytes). Rows and columns are padded up
// to whole tiles; the padding holds zeros.
#pragma once

#include <moe_ep/types.hpp>

namespace moe_ep::protocol {

// Rows of a tile; the linear layout has no padding.
MOE_EP_HD constexpr std::int64_t scale_tile_rows(SfLayout layout) {
  return layout == SfLayout::k128x4 ? 128 : layout == SfLayout::k8x4 ? 8 : 1;
}
MOE_EP_HD constexpr std::int64_t scale_tile_cols(SfLayout layout) {
  return layout == SfLayout::kLinear ? 1 : 4;
}

MOE_EP_HD constexpr std::int64_t scale_padded_rows(SfLayout layout, std::int64_t rows) {
  const std::int64_t tile = scale_tile_rows(layout);
  return (rows + tile - 1) / tile * tile;
}
MOE_EP_HD constexpr std::int64_t scale_padded_cols(SfLayout layout, std::int64_t cols) {
  const std::int64_t tile = scale_tile_cols(layout);
  return (cols + tile - 1) / tile * tile;
}
// Bytes of the whole matrix, padding included (a scale is one byte).
MOE_EP_HD constexpr std::int64_t scale_matrix_bytes(SfLayout layout, std::int64_t rows,
                                                    std::int64_t cols) {
  return scale_padded_rows(layout, rows) * scale_padded_cols(layout, cols);
}

// Offset of the scale of (row, col) in a matrix with `cols` columns. Also valid for padding, i.e.
// for any row and column below the padded sizes.
MOE_EP_HD constexpr std::int64_t scale_offset(SfLayout layout, std::int64_t row, std::int64_t col,
                                              std::int64_t cols) {
  const std::int64_t tiles_per_row = (cols + 3) / 4;
  switch (layout) {
    case SfLayout::k128x4:
      return (row / 128 * tiles_per_row + col / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 +
             col % 4;
    case SfLayout::k8x4:
      return (row / 8 * tiles_per_row + col / 4) * 32 + row % 8 * 4 + col % 4;
    case SfLayout::kLinear:
      break;
  }
  return row * cols + col;
}

}  // namespace moe_ep::protocol
