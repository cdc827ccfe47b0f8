// The one argument of the dispatch kernels.
#pragma once

#include "cuda/device/route.cuh"
#include "cuda/kernels/launch.hpp"
#include "protocol/step.hpp"

namespace moe_ep::cuda {

struct DispatchArgs {
  protocol::DispatchParams params;
  const RankMask* default_mask = nullptr;
  FailureRecord* record = nullptr;
  FastOwnership ownership;
  FastDivide pieces;  // divides by num_pieces
  std::int32_t tokens_per_block = 1;
  std::int32_t batch_tokens = kWarp;            // routed at once
  std::int32_t hops_per_token = 1;              // the most that a token can have
  std::int32_t num_pieces = 0;                  // of a token's rows, all payloads one after another
  std::int32_t first_piece[kMaxPayloads] = {};  // num_pieces for payloads that do not exist
  std::int32_t width[kMaxPayloads] = {};
  std::int32_t ids_width = 4;  // of the vectors in which many tokens' ids are read
  bool early = false;
  bool rehearse = false;

  MOE_EP_HD const RankMask* mask() const {
    return default_mask != nullptr ? default_mask : &params.active;
  }
};

}  // namespace moe_ep::cuda
