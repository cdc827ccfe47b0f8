// The parts of the module, each bound in a file of its own.
#pragma once

#include <nanobind/nanobind.h>

namespace moe_ep::bindings {

namespace nb = nanobind;

void bind_errors(nb::module_& module);
void bind_types(nb::module_& module);
void bind_comm(nb::module_& module);
void bind_communication(nb::module_& module);
void bind_a2a(nb::module_& module);
void bind_inspect(nb::module_& module);
void bind_workspace(nb::module_& module);

}  // namespace moe_ep::bindings
