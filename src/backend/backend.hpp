// Backend: who executes the steps of one rank. The one virtual interface between the core and a
// kind of memory.
#pragma once

#include <cstdint>
#include <optional>

#include <moe_ep/tensor.hpp>

#include "protocol/epoch.hpp"
#include "protocol/output.hpp"
#include "protocol/step.hpp"
#include "protocol/wait.hpp"

namespace moe_ep {

// A raw cudaStream_t; 0 is the default stream. Hosts take no notice of it.
using Stream = std::uintptr_t;

// A host runs a phase to its end, and the status says how it ended. A device only enqueues it on
// the stream; how it ended comes with pending_failure().
class Backend {
 public:
  virtual ~Backend() = default;

  virtual protocol::StepStatus dispatch(const protocol::DispatchParams& params, Stream stream) = 0;
  virtual protocol::StepStatus combine(const protocol::CombineParams& params,
                                       const CombineOutput& output, Stream stream) = 0;
  // Writes `invalid` over the ids of rows that carry no token of the last dispatch.
  // @param ids int32 [num_ranks, tokens_per_rank, top_k]
  virtual void sanitize(const protocol::Workspace& workspace, std::int32_t* ids,
                        std::int32_t tokens_per_rank, std::int32_t top_k, std::int32_t invalid,
                        Stream stream) = 0;

  // Who takes part in steps that name nobody, from this point of the stream on, also in replays of
  // captured ones. Without a stream: from now on, for steps that are enqueued later.
  virtual void set_default_mask(const RankMask& mask, std::optional<Stream> stream) = 0;

  // Arms the own slice: the next step is the successor of `epoch`. No step may be under way; done
  // when it returns, with earlier failures forgotten.
  // @param stream on which the caller has prepared the memory, if he has
  virtual void reset(const protocol::Workspace& workspace, protocol::Epoch epoch,
                     std::optional<Stream> stream = std::nullopt) = 0;
  // How many ranks run on the device at the same time.
  virtual void share_device(int num_ranks) = 0;
  // Of the last step begun, of those that have ended.
  virtual protocol::Epoch last_epoch(const protocol::Workspace& workspace) = 0;

  // The first failure of an enqueued step that the device has reported so far.
  virtual std::optional<protocol::StepStatus> pending_failure() const = 0;
  // Waits until every enqueued step has ended, well or not.
  virtual void synchronize() = 0;
  // Makes this rank's enqueued steps end soon, whatever they wait for, and waits for that. The
  // slice must be reset before the next step.
  virtual void abandon(const protocol::Workspace& workspace) = 0;
};

}  // namespace moe_ep
