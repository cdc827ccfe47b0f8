// What a launch needs beside the step: where its state lies and how much of the GPU it may take.
//
// **Progress.** Kernels wait for other ranks, so a rank's kernel must never keep another rank's
// from starting. Three rules make that so, whatever the order of launches, also for ranks that
// share a GPU and are launched one after another by one thread:
//
// 1. No launch has more blocks than its rank's share of the GPU (max_blocks): all blocks of all
//    ranks of the GPU fit at once. So a block that somebody waits for is running or can start,
//    except behind kernels of others, which end by themselves.
//    Lamport launches have smaller blocks in the same share, and where ranks share the GPU only one
//    a multiprocessor of it (8 if it has fewer): wherever those go, a block of the other kind finds
//    as many multiprocessors without one as its rank's share has.
// 2. Between the blocks of one launch, waits go one way: a block waits for what blocks do before
//    they wait (combine.hpp proves it for its parts; only the last block of a dispatch waits).
// 3. A successor that is launched early (PDL) sits on the GPU while its predecessor waits. With
//    several ranks on the GPU it could take a third rank's place, so it is launched early only
//    where a rank has the GPU to itself (Pdl::kEarly).
//
// What remains with the caller: streams of one process share hardware queues (8 of them, up to 32
// by CUDA_DEVICE_MAX_CONNECTIONS). With more ranks on a GPU than queues, enqueue a phase on every
// rank before the next phase.
//
// **Captured launches** hold constants only: epoch, mask and failure are read from memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <moe_ep/rank_mask.hpp>

#include "protocol/failure_record.hpp"

namespace moe_ep::cuda {

using protocol::FailureRecord;

// Programmatic dependent launch: whether a kernel may be launched before its predecessor has ended.
enum class Pdl : std::uint8_t {
  kOff,
  kLate,   // but not before the predecessor has finished its waits
  kEarly,  // as soon as all of the predecessor's blocks run
};

// Threads of a block at most; with 64 registers each they fill a multiprocessor.
inline constexpr int kMaxBlockThreads = 1024;

// SliceHeader::drain after a combine with pushed rows: its end has told the peers that they are
// read.
inline constexpr std::uint32_t kDrainTold = 1;
// The same after a Lamport combine: the peers do not know yet that this rank has read its expert
// output. A fence dispatch tells them before it waits for the same from them.
inline constexpr std::uint32_t kDrainUntold = 2;

struct LaunchOptions {
  // Device memory with the ranks that take part, read by the kernel; null: those of the parameters.
  const RankMask* default_mask = nullptr;
  // Where a failure is written (device address of mapped host memory); null: it is not told.
  FailureRecord* record = nullptr;
  std::int32_t num_sms = 1;          // multiprocessors of the GPU
  std::int32_t max_sms = 0;          // upper bound of those that a launch takes; 0: none
  std::int32_t ranks_on_device = 1;  // that run at the same time
  Pdl pdl = Pdl::kOff;

  // Multiprocessors that a launch may fill.
  std::int32_t sms() const {
    std::int32_t sms = num_sms / (ranks_on_device > 1 ? ranks_on_device : 1);
    if (max_sms > 0 && max_sms < sms) sms = max_sms;
    return sms > 1 ? sms : 1;
  }
  // Blocks of `threads` of a kernel of which `held` threads fit a multiprocessor at any time.
  std::int32_t max_blocks(std::int32_t threads = kMaxBlockThreads,
                          std::int32_t held = kMaxBlockThreads) const {
    return sms() * (held / threads);
  }
  bool early() const { return pdl == Pdl::kEarly && ranks_on_device == 1; }
  // Whether a launch of so many blocks can be on the GPU, to rehearse (await.cuh), while one like
  // it still runs. Otherwise the rehearsal would come between the two.
  bool rehearses(std::int32_t blocks) const { return early() && 2 * blocks <= num_sms; }
};

// Enqueues `kernel` with its one argument. Clears nothing and waits for nothing.
template <class Args>
cudaError_t enqueue(void (*kernel)(Args), std::int32_t blocks, std::int32_t threads,
                    std::size_t shared_bytes, Pdl pdl, cudaStream_t stream, const Args& args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = pdl == Pdl::kOff ? 0 : 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace moe_ep::cuda
