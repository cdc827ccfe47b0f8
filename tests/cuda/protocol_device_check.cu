// Compile check: the protocol as device code, with the least that a Memory and a Coop of a GPU can
// be. Nothing runs; what ptxas says about it can be looked at (no stack frames, release and acquire
// of system scope).
#include <cstddef>
#include <cstdint>

#include "protocol/one_sided.hpp"
#include "protocol/reduce.hpp"
#include "protocol/transport/counted.hpp"
#include "protocol/transport/fence.hpp"
#include "protocol/transport/lamport_combine.hpp"

namespace protocol_device_check {

using namespace moe_ep;
using namespace moe_ep::protocol;

struct DeviceMemory {
  __device__ void copy_row(std::byte* to, const std::byte* from, std::int64_t bytes) {
    for (std::int64_t at = 0; at < bytes; ++at)
      to[at] = from[at];
  }
  __device__ void store_release(std::uint32_t* word, std::uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
  }
  __device__ std::uint32_t load_acquire(const std::uint32_t* word) {
    std::uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ void store_relaxed(std::uint32_t* word, std::uint32_t value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
  }
  __device__ std::uint32_t load_relaxed(const std::uint32_t* word) {
    std::uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ void store_tag(std::uint64_t* tag, std::uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(tag), "l"(value) : "memory");
  }
  __device__ std::uint64_t load_tag(const std::uint64_t* tag) {
    std::uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(tag) : "memory");
    return value;
  }
  __device__ void add_release(std::uint64_t* counter, std::uint64_t bytes) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(counter), "l"(bytes) : "memory");
  }
  __device__ std::uint64_t load_acquire(const std::uint64_t* counter) {
    std::uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
    return value;
  }
  __device__ std::uint64_t now_ns() {
    std::uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
  __device__ void pause(std::uint32_t polls) {
    if (polls > 64) __nanosleep(100);
  }
};

struct BlockCoop {
  __device__ int thread_rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(blockDim.x); }
  __device__ void sync() const { __syncthreads(); }
};

struct BlockRows {
  const CombineParams& params;
  Bf16::Bits* output;
  std::byte* scratch;

  __device__ std::byte* staging(std::int32_t index) { return scratch + index * params.row_bytes; }
  __device__ void place(std::byte* to, const std::byte* from) {
    for (std::int64_t at = 0; at < params.row_bytes; ++at)
      to[at] = from[at];
  }
  __device__ void sum(std::int32_t token, const std::byte* const* rows, std::int32_t num_rows) {
    for (std::int32_t element = 0; element < params.elements; ++element) {
      const float total = sum_element(num_rows, [&](int row) {
        return Bf16::to_float(reinterpret_cast<const Bf16::Bits*>(rows[row])[element]);
      });
      output[static_cast<std::int64_t>(token) * params.elements + element] =
          Bf16::from_float(total);
    }
  }
};

static_assert(TagMemory<DeviceMemory> && CounterMemory<DeviceMemory> && Coop<BlockCoop>);

__global__ void dispatch_step(DispatchParams params, StepStatus* status) {
  __shared__ alignas(StepStatus) std::byte shared[sizeof(StepStatus)];
  BlockCoop coop;
  DeviceMemory memory;
  const StepStatus result =
      dispatch<FenceTransport>(coop, memory, params, *reinterpret_cast<StepStatus*>(shared));
  if (coop.thread_rank() == 0) *status = result;
}

__global__ void combine_step(CombineParams params, Bf16::Bits* output, StepStatus* status) {
  __shared__ alignas(StepStatus) std::byte shared[sizeof(StepStatus)];
  BlockCoop coop;
  DeviceMemory memory;
  BlockRows rows{params, output, nullptr};
  const StepStatus result =
      combine<FenceTransport>(coop, memory, rows, params, *reinterpret_cast<StepStatus*>(shared));
  if (coop.thread_rank() == 0) *status = result;
}

__global__ void dispatch_other(DispatchParams params, StepStatus* status) {
  __shared__ alignas(StepStatus) std::byte shared[sizeof(StepStatus)];
  BlockCoop coop;
  DeviceMemory memory;
  auto& ended = *reinterpret_cast<StepStatus*>(shared);
  const bool lamport = fits_lamport(params);
  const StepStatus result = lamport ? lamport_dispatch(coop, memory, params, ended)
                                    : counted_dispatch(coop, memory, params, ended);
  if (coop.thread_rank() == 0) *status = result;
}

__global__ void combine_other(CombineParams params, Bf16::Bits* output, std::byte* scratch,
                              StepStatus* status) {
  __shared__ alignas(StepStatus) std::byte shared[sizeof(StepStatus)];
  BlockCoop coop;
  DeviceMemory memory;
  BlockRows rows{params, output, scratch};
  auto& ended = *reinterpret_cast<StepStatus*>(shared);
  const bool lamport = params.transport == Transport::kLamport;
  const StepStatus result = lamport ? lamport_combine(coop, memory, rows, params, ended)
                                    : counted_combine(coop, memory, rows, params, ended);
  if (coop.thread_rank() == 0) *status = result;
}

__global__ void maintain(Workspace workspace, Epoch epoch, std::int32_t* ids, std::int32_t top_k,
                         std::int32_t invalid) {
  if (threadIdx.x == 0) reset_slice(workspace, epoch);
  __syncthreads();
  mark_empty_rows(ids, workspace.recv_counts(), workspace.layout.num_ranks,
                  workspace.layout.max_tokens, top_k, invalid, static_cast<int>(threadIdx.x),
                  static_cast<int>(blockDim.x));
}

// What is constexpr on the host works out the same in device code.
__global__ void describe(std::int32_t num_ranks, std::int32_t max_tokens, std::int64_t* sizes,
                         RankMask* masks, std::int32_t* differences) {
  const auto i = static_cast<std::int32_t>(threadIdx.x);
  sizes[i] = WorkspaceLayout::required_bytes(num_ranks, max_tokens, i, 64, 32);
  const auto layout = WorkspaceLayout::make(num_ranks, max_tokens, i, sizes[i]);
  const std::int32_t row_bytes[] = {16, 48};
  sizes[blockDim.x + i] = PayloadPlacement::make(layout, max_tokens, row_bytes, 2).begin;
  const auto ownership = Ownership::make(num_ranks * 3 + 1, num_ranks);
  masks[i] = ranks_of_token(ownership, {sizes, true}, 2, RankMask::first(num_ranks));
  StepSignature a;
  StepSignature b;
  b.fields[kTopK] = ownership.num_local(i);
  differences[i] = a.first_difference(b) + (has_reached(next_epoch(i), i) ? 0 : 1);
}

}  // namespace protocol_device_check
