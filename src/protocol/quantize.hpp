// All quantising arithmetic: the FP8 wire of a low-precision combine, block-scaled outputs and the
// layouts of their scales.
#pragma once

#include "protocol/block_scale.hpp"
#include "protocol/fp8_wire.hpp"
#include "protocol/scale_layout.hpp"
