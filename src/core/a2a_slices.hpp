// What this process keeps about a slice between calls of the stateless family, by the slice's
// address: who executes its steps, how large they were.
#pragma once

#include <cstdint>
#include <memory>

#include <moe_ep/tensor.hpp>

#include "backend/platform.hpp"

namespace moe_ep::detail {

struct A2aSlice {
  Device device;
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  std::shared_ptr<protocol::FailureRecord> record;
  std::unique_ptr<Backend> backend;
  std::int64_t max_dispatch_bytes = 0;  // largest dispatch region of any step so far
  std::int64_t max_combine_bytes = 0;   // largest combine region of any step so far
  std::int32_t num_tokens = 0;          // that the last dispatch sent
};

// Where tensors of `device` are worked on.
const Platform& platform_of(Device device);

// Forgets what was known about the slice. Tells backends of ranks that share a GPU in this process.
A2aSlice& begin_slice(const protocol::Workspace& workspace, Device device);

// The slice; as after begin_slice() if another process has initialised it.
A2aSlice& slice_of(const protocol::Workspace& workspace, Device device);

}  // namespace moe_ep::detail
