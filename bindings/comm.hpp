// A Python comm backend as the C++ interface.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include <moe_ep/comm_backend.hpp>

namespace moe_ep::bindings {

namespace nb = nanobind;

// Wraps any object with Get_rank, Get_size, allgather, bcast, barrier and Split. Calls take the
// GIL.
// @param group the object that says which group it is (a process group, the backend itself)
std::shared_ptr<CommBackend> wrap_comm(nb::object backend, nb::object group);

}  // namespace moe_ep::bindings
