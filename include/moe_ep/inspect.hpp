/// @file
/// What a slice of the host backend says about the steps of its group, for who looks at it from
/// outside: another process, or a debugger.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <moe_ep/export.hpp>
#include <moe_ep/rank_mask.hpp>
#include <moe_ep/types.hpp>

namespace moe_ep {

/// What one rank has told the slice's owner. Epochs number steps, modulo 2^32.
struct PeerInspection {
  int rank = 0;
  std::uint32_t dispatch_epoch = 0;  ///< the last step whose dispatch it announced
  std::uint32_t combine_epoch = 0;   ///< the same of combines
  std::uint32_t dispatch_flag = 0;   ///< fence and counted steps
  std::uint32_t combine_flag = 0;
  std::int32_t announced_rows = 0;  ///< in that fence or counted step
  std::uint32_t combine_code = 0;
  std::int32_t tokens_per_rank = 0;          ///< T of its last fence or counted step
  std::optional<Transport> transport;        ///< of that step
  std::array<std::uint32_t, 2> line_tags{};  ///< Lamport steps: epoch of each bank's line
  std::array<std::uint32_t, 2> combine_tags{};
  std::uint64_t dispatch_bytes = 0;  ///< counted steps: that came, in all steps
  std::uint64_t combine_bytes = 0;
  std::uint64_t expected_dispatch_bytes = 0;  ///< that the owner has waited for, in all steps
  std::uint64_t expected_combine_bytes = 0;
  std::int32_t rows_received = 0;  ///< in the owner's last accepted dispatch
  std::int32_t rows_sent = 0;      ///< in the owner's last dispatch
};

struct SliceInspection {
  int rank = 0;  ///< the owner
  int num_ranks = 1;
  std::int64_t max_tokens = 0;  ///< max_tokens_per_rank
  std::uint32_t epoch = 0;      ///< of the owner's last step begun
  RankMask active;              ///< who takes part in it; nobody before the first step
  bool has_lamport = false;
  bool has_counted = false;
  std::vector<PeerInspection> peers;  ///< [num_ranks], the owner itself included
};

/// Reads a slice of the host backend, which may be in use. Takes no lock and writes nothing; words
/// of a step that goes on meanwhile may be of different moments. Meant for another process: a
/// thread of the same one races with the steps' plain stores, which race detectors report.
/// @param slice `bytes` readable bytes, 8-byte aligned; nothing in them is trusted
/// @throws std::invalid_argument these bytes are no armed slice of the host backend
MOE_EP_API SliceInspection inspect_slice(const std::byte* slice, std::size_t bytes);

}  // namespace moe_ep
