// Symmetric memory by itself, for the stateless family.

#include <moe_ep/workspace.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <numeric>
#include <vector>

#include "comm.hpp"
#include "parts.hpp"

namespace moe_ep::bindings {

void bind_workspace(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<SymmetricWorkspace>(module, "SymmetricWorkspace",
                                 "One slice a rank, every slice mapped on every rank.")
      .def_static(
          "create_host",
          [](nb::object backend, nb::object group, std::size_t num_bytes) {
            const auto comm = wrap_comm(std::move(backend), std::move(group));
            const nb::gil_scoped_release release;
            return SymmetricWorkspace::create_host(*comm, num_bytes);
          },
          "comm_backend"_a, "group"_a, "num_bytes"_a)
      .def_static(
          "create_cuda",
          [](nb::object backend, nb::object group, std::size_t num_bytes, int device) {
            const auto comm = wrap_comm(std::move(backend), std::move(group));
            const nb::gil_scoped_release release;
            std::vector<int> members(static_cast<std::size_t>(comm->get_size()));
            std::iota(members.begin(), members.end(), 0);
            return SymmetricWorkspace::create_cuda(*comm, num_bytes, device, comm->get_size(),
                                                   members);
          },
          "comm_backend"_a, "group"_a, "num_bytes"_a, "device"_a)
      .def(
          "tensor",
          [](nb::handle self) {
            const auto& workspace = nb::cast<const SymmetricWorkspace&>(self);
            return nb::ndarray<nb::pytorch, std::uint8_t, nb::ndim<2>>(
                workspace.base(),
                {static_cast<std::size_t>(workspace.num_ranks()), workspace.bytes()}, self,
                {static_cast<std::int64_t>(workspace.slice_stride()), 1}, nb::dtype<std::uint8_t>(),
                workspace.device().type, workspace.device().index);
          },
          "A uint8 torch tensor [R, bytes] over all slices; it keeps this object alive.")
      .def(
          "checkpoint_prepare",
          [](SymmetricWorkspace& workspace, nb::object backend, nb::object group) {
            const auto comm = wrap_comm(std::move(backend), std::move(group));
            const nb::gil_scoped_release release;
            workspace.checkpoint_prepare(*comm);
          },
          "comm_backend"_a, "group"_a)
      .def(
          "checkpoint_restore",
          [](SymmetricWorkspace& workspace, nb::object backend, nb::object group) {
            const auto comm = wrap_comm(std::move(backend), std::move(group));
            const nb::gil_scoped_release release;
            workspace.checkpoint_restore(*comm);
          },
          "comm_backend"_a, "group"_a)
      .def_prop_ro("rank", &SymmetricWorkspace::rank)
      .def_prop_ro("mapped", &SymmetricWorkspace::mapped);
}

}  // namespace moe_ep::bindings
