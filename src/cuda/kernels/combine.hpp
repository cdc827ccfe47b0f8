// Combine on a GPU: the protocol's sum over the rows that came back, as one kernel with two ways to
// get them.
//
// **Pull** (small steps). The first block tells every peer that this rank has entered the step; its
// rows lie in its own combine region already, or are copied (encoded) there, each row with a flag.
// Then every block reads its tokens' rows from the peers. A rank whose experts wrote over the rows
// they got copies them to its combine region before it enters: its peers may put rows of the next
// step there while it still copies.
//
// **Push** (large steps). With both directions of a link busy, loads get less of it than stores, so
// peers are asked to push. A rank that enters the step says where its rows may land: behind the
// combine region in its own slice, which is free by then (layout.hpp), in compact blocks of as many
// rows as it has sent to each peer. Where a block does not fit, or the rank has few multiprocessors
// (it would have to read every row once more), or its experts wrote over the rows they got, it asks
// for no landing and pulls that peer's rows.
// Rows are cut into parts of some KB with a flag each. The first warps of every block do nothing
// but push parts, a warp a part, and raise their flags; the others sum, each part of a token as
// soon as its flags are there. All multiprocessors take part because the links get slower when a
// few dozen of them store alone. After the step each rank tells its peers that it has read what
// they pushed, and the next dispatch waits for that (dispatch.hpp).
//
// **Who waits for whom.** Pushing warps wait only for the peers' entries, which the first block of
// each rank announces before it waits for anything. Summing warps wait for pushes; a warp that
// has to do both pushes first. A rank that pulls places rows, if it must, before it waits. So the
// waits have no circle, and all blocks of all ranks of a GPU are resident or can be (launch.hpp).
//
// Choosing between the two ways depends only on values that all ranks share.
#pragma once

#include "cuda/kernels/launch.hpp"
#include "protocol/output.hpp"
#include "protocol/step.hpp"

namespace moe_ep::cuda {

// What measurements choose; the same on every rank but for the last three.
struct CombineTuning {
  std::int64_t push_bytes = 64 << 20;  // peers push when T x row bytes is at least this; -1: never
  std::int64_t part_bytes = 7 << 10;   // of a pushed row that are announced at once, about
  std::int32_t min_push_sms = 48;      // with fewer multiprocessors a rank pulls
  std::int32_t push_percent = 30;      // of a block's warps, that push and do not sum
  std::int32_t fp8_push_percent = 45;  // the same where they encode rows
  std::int32_t threads = 1024;         // of a block at most; whole warps
};

// Enqueues one rank's combine. `params.active` is not used: the mask is that of the dispatch.
cudaError_t launch_combine(const protocol::CombineParams& params, const CombineOutput& output,
                           const LaunchOptions& options, cudaStream_t stream,
                           const CombineTuning& tuning = {});

// Loads the kernels on the current device.
cudaError_t preload_combine();

}  // namespace moe_ep::cuda
