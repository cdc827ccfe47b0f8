/// @file
/// Scalar vocabulary of the library: element types, quantised formats, transports.
///
/// Freestanding: usable from device code, includes nothing but fixed-width integers. The
/// MOE_EP_FOR_EACH_* lists are the extension points: add a line here and every table, parser and
/// typed test that expands them follows.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define MOE_EP_HD __host__ __device__
#else
/// Marks a function that host and device code share.
#define MOE_EP_HD
#endif

namespace moe_ep {

/// Largest number of ranks of one expert-parallel group.
inline constexpr int kMaxRanks = 256;
/// Largest top_k.
inline constexpr int kMaxTopK = 64;
/// Most payload tensors that one dispatch carries.
inline constexpr int kMaxPayloads = 8;
/// Most `extra_payloads` of one dispatch.
inline constexpr int kMaxExtraPayloads = 4;

/// Element type, laid out and numbered as DLPack's DLDataType (code, bits, lanes).
/// Source: https://dmlc.github.io/dlpack/latest/c_api.html
struct DType {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;

  friend MOE_EP_HD constexpr bool operator==(DType a, DType b) {
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
  }
  friend MOE_EP_HD constexpr bool operator!=(DType a, DType b) { return !(a == b); }
};

// X(name, DLPack code, bits, lanes). A sub-byte type counts its packed byte.
#define MOE_EP_FOR_EACH_DTYPE(X) \
  X(Int8, 0, 8, 1)               \
  X(Int16, 0, 16, 1)             \
  X(Int32, 0, 32, 1)             \
  X(Int64, 0, 64, 1)             \
  X(UInt8, 1, 8, 1)              \
  X(UInt16, 1, 16, 1)            \
  X(UInt32, 1, 32, 1)            \
  X(UInt64, 1, 64, 1)            \
  X(Float16, 2, 16, 1)           \
  X(Float32, 2, 32, 1)           \
  X(Float64, 2, 64, 1)           \
  X(BFloat16, 4, 16, 1)          \
  X(Complex32, 5, 32, 1)         \
  X(Complex64, 5, 64, 1)         \
  X(Complex128, 5, 128, 1)       \
  X(Bool, 6, 8, 1)               \
  X(Float8E4M3FN, 10, 8, 1)      \
  X(Float8E4M3FNUZ, 11, 8, 1)    \
  X(Float8E5M2, 12, 8, 1)        \
  X(Float8E5M2FNUZ, 13, 8, 1)    \
  X(Float8E8M0FNU, 14, 8, 1)     \
  X(Float4E2M1FNx2, 17, 4, 2)

#define MOE_EP_DTYPE_CONSTANT(name, code, bits, lanes) \
  inline constexpr DType k##name{code, bits, lanes};
MOE_EP_FOR_EACH_DTYPE(MOE_EP_DTYPE_CONSTANT)
#undef MOE_EP_DTYPE_CONSTANT

/// Whether the list above has this dtype.
MOE_EP_HD constexpr bool is_known(DType dtype) {
#define MOE_EP_DTYPE_MATCH(name, code, bits, lanes) \
  if (dtype == DType{code, bits, lanes}) return true;
  MOE_EP_FOR_EACH_DTYPE(MOE_EP_DTYPE_MATCH)
#undef MOE_EP_DTYPE_MATCH
  return false;
}

/// Bytes of one element; a packed sub-byte type counts its whole vector.
MOE_EP_HD constexpr std::int64_t itemsize(DType dtype) {
  return (static_cast<std::int64_t>(dtype.bits) * dtype.lanes + 7) / 8;
}

/// Name of a dtype, for messages.
constexpr const char* dtype_name(DType dtype) {
#define MOE_EP_DTYPE_NAME(name, code, bits, lanes) \
  if (dtype == DType{code, bits, lanes}) return #name;
  MOE_EP_FOR_EACH_DTYPE(MOE_EP_DTYPE_NAME)
#undef MOE_EP_DTYPE_NAME
  return "unknown dtype";
}

// X(name). The bytes a token takes in each: dispatch_bytes().
#define MOE_EP_FOR_EACH_QUANT_FORMAT(X) \
  X(BF16)                               \
  X(FP16)                               \
  X(FP8PerTensor)                       \
  X(DeepSeekFp8)                        \
  X(MXFP8)                              \
  X(NVFP4)                              \
  X(MXFP4)

/// Format of dispatched rows (MoEEpCommParams::dispatch_format).
enum class QuantFormat : std::uint8_t {
#define MOE_EP_ENUMERATOR(name) k##name,
  MOE_EP_FOR_EACH_QUANT_FORMAT(MOE_EP_ENUMERATOR)
#undef MOE_EP_ENUMERATOR
};

constexpr const char* quant_format_name(QuantFormat format) {
  switch (format) {
#define MOE_EP_CASE(name)    \
  case QuantFormat::k##name: \
    return #name;
    MOE_EP_FOR_EACH_QUANT_FORMAT(MOE_EP_CASE)
#undef MOE_EP_CASE
  }
  return "unknown format";
}

/// Bytes of one token's row in `format`, scales included.
///
/// | format | values | scales |
/// |---|---|---|
/// | BF16, FP16 | 2H | - |
/// | FP8PerTensor | H | - |
/// | DeepSeekFp8 | H | float32 per 128 |
/// | MXFP8 | H | UE8M0 byte per 32 (OCP MX v1.0) |
/// | NVFP4 | ceil(H/2) | e4m3 byte per 16 |
/// | MXFP4 | ceil(H/2) | UE8M0 byte per 32 (OCP MX v1.0) |
MOE_EP_HD constexpr std::int64_t dispatch_bytes(QuantFormat format, std::int64_t hidden) {
  switch (format) {
    case QuantFormat::kBF16:
    case QuantFormat::kFP16:
      return 2 * hidden;
    case QuantFormat::kFP8PerTensor:
      return hidden;
    case QuantFormat::kDeepSeekFp8:
      return hidden + 4 * ((hidden + 127) / 128);
    case QuantFormat::kMXFP8:
      return hidden + (hidden + 31) / 32;
    case QuantFormat::kNVFP4:
      return (hidden + 1) / 2 + (hidden + 15) / 16;
    case QuantFormat::kMXFP4:
      return (hidden + 1) / 2 + (hidden + 31) / 32;
  }
  return 0;
}

#define MOE_EP_FOR_EACH_TRANSPORT(X) \
  X(Fence, "fence")                  \
  X(Lamport, "lamport")              \
  X(Counted, "counted")

/// How a step's rows travel. Values are part of the step signature.
enum class Transport : std::uint8_t {
#define MOE_EP_ENUMERATOR(name, text) k##name,
  MOE_EP_FOR_EACH_TRANSPORT(MOE_EP_ENUMERATOR)
#undef MOE_EP_ENUMERATOR
};

constexpr const char* transport_name(Transport transport) {
  switch (transport) {
#define MOE_EP_CASE(name, text) \
  case Transport::k##name:      \
    return text;
    MOE_EP_FOR_EACH_TRANSPORT(MOE_EP_CASE)
#undef MOE_EP_CASE
  }
  return "unknown transport";
}

/// Where block scales of a quantised combine output lie (moe_a2a_combine).
enum class SfLayout : std::uint8_t { k128x4 = 0, k8x4 = 1, kLinear = 2 };

/// What a step was doing when it ended early.
enum class Phase : std::uint8_t { kDispatch = 0, kCombine = 1, kSetup = 2 };

constexpr const char* phase_name(Phase phase) {
  return phase == Phase::kDispatch ? "dispatch" : phase == Phase::kCombine ? "combine" : "setup";
}

}  // namespace moe_ep
