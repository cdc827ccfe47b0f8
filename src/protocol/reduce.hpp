// The combine sum, defined once.
//
// An element of a combined token is the float32 sum of its contributions, one from each rank that
// received the token, in ascending rank order, starting from the first one; the result is rounded
// to nearest even once, when it is stored. Consequences that every backend and transport keeps:
//
// - one contribution comes back unchanged, -0.0 included (only a NaN may change its payload);
// - no contribution gives +0.0;
// - the bits do not depend on arrival order, on where rows lie or on who adds.
//
// Bulk code (vectors on the CPU, warps on the GPU) may add many elements side by side, never the
// contributions of one element in another order.
#pragma once

#include "protocol/payload.hpp"

namespace moe_ep::protocol {

// Adding any contribution to -0.0 gives that contribution, +0.0 and -0.0 included: a loop may start
// here instead of treating the first contribution apart. Without contributions the result is
// kEmptySum, not this.
inline constexpr float kSumIdentity = -0.0f;
// The sum of no contributions.
inline constexpr float kEmptySum = 0.0f;

// The sum so far and the next contribution in rank order.
MOE_EP_HD inline float sum_next(float sum, float contribution) {
  return add_rn(sum, contribution);
}

// The float32 sum of one element. `contribution(i)` is the i-th in ascending rank order, as
// float32.
template <class Contribution>
MOE_EP_HD inline float sum_element(int num_contributions, Contribution&& contribution) {
  if (num_contributions == 0) return kEmptySum;
  float sum = contribution(0);
  for (int i = 1; i < num_contributions; ++i)
    sum = sum_next(sum, contribution(i));
  return sum;
}

// One element of a combine: `values` in ascending rank order, stored as `In`, summed to `Out`.
template <class In, class Out>
MOE_EP_HD inline typename Out::Bits combine_element(const typename In::Bits* values,
                                                    int num_contributions) {
  if (num_contributions == 0) return Out::from_float(kEmptySum);
  float sum = In::to_float(values[0]);
  for (int i = 1; i < num_contributions; ++i)
    sum = sum_next(sum, In::to_float(values[i]));
  return Out::from_float(sum);
}

}  // namespace moe_ep::protocol
