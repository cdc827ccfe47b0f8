// StepSignature: what every rank must pass alike for a step to make sense.
//
// It travels in the line that carries the step's flag, so agreement costs no message. A receiver
// compares a peer's signature with its own before it reads a row. Fields are int32, listed once.
#pragma once

#include <cstdint>

#include <moe_ep/types.hpp>

namespace moe_ep::protocol {

// X(field, what a message calls it). Row sizes of the payloads follow these.
#define MOE_EP_FOR_EACH_SIGNATURE_FIELD(X)                                                \
  X(kTokensPerRank, "runtime_max_tokens_per_rank")                                        \
  X(kNumExperts, "num_experts")                                                           \
  X(kTopK, "top_k")                                                                       \
  X(kTransport, "transport")                                                              \
  X(kPresence, "presence of weights, scales or eplb stats, or the extra payloads' names") \
  X(kNumPayloads, "number of payloads")

enum SignatureField : std::int32_t {
#define MOE_EP_ENUMERATOR(field, text) field,
  MOE_EP_FOR_EACH_SIGNATURE_FIELD(MOE_EP_ENUMERATOR)
#undef MOE_EP_ENUMERATOR
      kFirstRowBytes,
  kNumSignatureFields = kFirstRowBytes + kMaxPayloads,
};

// Bits of the kPresence field; extra payloads count in units of kExtraPayload within the low byte,
// and the bits above hold a hash of their names.
enum Presence : std::int32_t {
  kHasScale = 1,
  kHasWeights = 2,
  kHasEplbStats = 4,
  kExtraPayload = 8,
};
inline constexpr std::int32_t kNameHashShift = 8;

struct StepSignature {
  std::int32_t fields[kNumSignatureFields] = {};

  // Index of the first field that differs, or -1.
  MOE_EP_HD constexpr std::int32_t first_difference(const StepSignature& other) const {
    for (std::int32_t field = 0; field < kNumSignatureFields; ++field) {
      if (fields[field] != other.fields[field]) return field;
    }
    return -1;
  }
};

}  // namespace moe_ep::protocol
