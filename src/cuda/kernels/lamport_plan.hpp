// How a Lamport launch is cut into blocks. Host code.
#pragma once

#include "cuda/kernels/lamport_args.cuh"

namespace moe_ep::cuda {

inline constexpr int kLamportLargeVectors = 2;

// What a lane has of a unit: little in small steps, where latency counts, more in steps of more
// units than blocks.
enum class LamportCut : std::int8_t { kNarrow, kSmall, kMedium, kLarge };

struct LamportPlan {
  LamportShape shape;
  LamportCut cut = LamportCut::kNarrow;
  bool by_16 = false;  // rows and their pieces are aligned to 16
  bool adds = false;   // a combine, which has no registers for as much
  std::int32_t blocks = 1;

  // Bytes of a lane: of a vector, and how many vectors.
  std::int32_t bytes() const {
    if (cut == LamportCut::kNarrow) return 4;
    return by_16 && cut != LamportCut::kSmall ? 16 : 8;
  }
  std::int32_t vectors() const {
    if (cut == LamportCut::kNarrow || cut == LamportCut::kSmall) return 1;
    return by_16 && (cut == LamportCut::kMedium || adds) ? 1 : kLamportLargeVectors;
  }
};

// @param all_or_ed whatever the users' rows and their sizes must be multiples of
// @param tags       a dispatch's; its num_blocks is set. Null: a combine
inline LamportPlan plan_lamport_rows(std::int64_t row_bytes, std::uint64_t all_or_ed,
                                     std::int32_t tokens, LamportTagShape* tags,
                                     const LaunchOptions& options) {
  LamportPlan plan;
  plan.adds = tags == nullptr;
  const std::int64_t width = row_width(all_or_ed);
  plan.by_16 = width == 16;
  LamportShape& shape = plan.shape;
  shape.row_bytes = static_cast<std::uint32_t>(row_bytes);
  const std::int64_t head = plan.adds ? kCombineHeadBlocks : kDispatchHeadBlocks;
  // Ranks that share a GPU have one block a multiprocessor of their share: small blocks are spread
  // over all multiprocessors, and a peer's kernels need room beside them.
  const std::int64_t room_for =
      options.ranks_on_device > 1
          ? options.sms() > kLamportBlocksPerSm ? options.sms() : kLamportBlocksPerSm
          : options.max_blocks(kLamportThreads);
  const std::int64_t capacity = room_for - head;
  // Blocks with tags, at most and at least: tokens of a block take turns of about a microsecond.
  const std::int64_t most =
      plan.adds ? 0 : (tokens + tags->tokens_at_once - 1) / tags->tokens_at_once;
  const std::int64_t least = most < 4 ? most : most / 8 > 4 ? most / 8 : 4;
  std::int64_t pieces = 0;
  // Cuts the rows; whether every unit has a block of its own, with some left for the tags.
  const auto fits = [&](LamportCut cut) {
    plan.cut = cut;
    shape.piece_bytes = static_cast<std::uint32_t>(kLamportThreads * plan.bytes() * plan.vectors());
    pieces = (row_bytes + shape.piece_bytes - 1) / shape.piece_bytes;
    return pieces * tokens + least <= capacity;
  };
  bool all_fit = false;
  if (width < 8) {
    all_fit = fits(LamportCut::kNarrow);
  } else {
    all_fit = fits(LamportCut::kSmall) || fits(LamportCut::kMedium) || fits(LamportCut::kLarge);
  }
  shape.width = plan.bytes() > 4 ? plan.bytes() : static_cast<std::int32_t>(width);
  std::int64_t tag_blocks = capacity - pieces * tokens;
  if (!all_fit && tags != nullptr) {
    // In proportion to the work: a group of tags takes a warp as long as 7 / 4 pieces (measured).
    const std::int64_t work = 7 * tags->groups;
    tag_blocks = capacity * work / (work + 4 * kLamportWarps * pieces);
  }
  if (tag_blocks < 1) tag_blocks = 1;
  if (tag_blocks > most) tag_blocks = most;
  const std::int64_t room = capacity - tag_blocks;
  const std::int64_t row_blocks = pieces * tokens < room ? pieces * tokens : room;
  const std::int64_t divisor = pieces > 0 ? pieces : 1;
  shape.pieces = FastDivide::make(divisor);
  shape.pieces_bytes = static_cast<std::uint32_t>(pieces * shape.piece_bytes);
  shape.step_tokens = static_cast<std::int32_t>(row_blocks / divisor);
  shape.step_bytes = static_cast<std::uint32_t>(row_blocks % divisor * shape.piece_bytes);
  if (tags != nullptr) tags->num_blocks = static_cast<std::int32_t>(tag_blocks);
  plan.blocks = static_cast<std::int32_t>(head + tag_blocks + row_blocks);
  return plan;
}

inline LamportTagShape plan_lamport_tags(const protocol::DispatchParams& params) {
  LamportTagShape shape;
  std::int32_t tags = params.top_k;
  for (std::int32_t payload = 2; payload <= kMaxPayloads; ++payload) {
    shape.first_tag[payload] = tags;
    if (payload >= params.num_payloads) continue;
    const protocol::Payload& from = params.payloads[payload];
    const std::int64_t row_bytes = params.row_bytes(payload);
    tags += static_cast<std::int32_t>(protocol::LamportLayout::num_tags(row_bytes));
    if (row_width(bits_of(from.rows) | bits_of(from.stride) | bits_of(row_bytes) |
                  bits_of(params.workspace.base) | bits_of(params.workspace.slice_stride) |
                  bits_of(params.placement.offsets[payload])) >= 4) {
      shape.whole_words |= 1u << payload;
    }
  }
  shape.whole_words |= 1u << 1;  // ids are made here
  shape.num_tags = tags;
  shape.groups = (tags + kWarp - 1) / kWarp;
  const std::int32_t warps = shape.groups < kLamportWarps ? kLamportWarps / shape.groups : 1;
  shape.parts = 1;
  while (2 * shape.parts <= warps && shape.parts < params.workspace.layout.num_ranks - 1)
    shape.parts *= 2;
  shape.tokens_at_once = warps / shape.parts;
  return shape;
}

}  // namespace moe_ep::cuda
