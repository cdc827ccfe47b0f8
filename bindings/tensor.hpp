// From Python tensors to TensorView, without linking torch and without copying.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include <moe_ep/rank_mask.hpp>
#include <moe_ep/tensor.hpp>

namespace moe_ep::bindings {

namespace nb = nanobind;

// A view of `object`, which outlives it. `operation` and `name` are for the message.
// @throws TypeMismatchError when it is no tensor with memory behind it
TensorView view_of(nb::handle object, const char* operation, const char* name);

// The stream that `tensor`'s library has made current for the calling thread on the tensor's
// device; 0 on CPUs.
std::uintptr_t current_stream_of(nb::handle tensor, Device device);

// nullopt for None.
std::optional<TensorView> optional_view_of(nb::handle object, const char* operation,
                                           const char* name);

// An int, which a bool is not; nullopt for None.
std::optional<std::int64_t> optional_int_of(nb::handle object, const char* operation,
                                            const char* name);

// A mask from a CPU uint64 tensor of at least ceil(num_ranks / 64) words; nullopt for None.
std::optional<RankMask> optional_mask_of(nb::handle object, const char* operation, int num_ranks);

}  // namespace moe_ep::bindings
