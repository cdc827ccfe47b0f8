#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>

#include <moe_ep/log.hpp>
#include <moe_ep/version.hpp>

#include "parts.hpp"

namespace nb = nanobind;

NB_MODULE(_core, module) {
  nb::set_leak_warnings(false);  // module globals at exit are no leak
  module.doc() = "The C++ library of moe_ep.";
  module.attr("__version__") = MOE_EP_VERSION_STRING;
  moe_ep::bindings::bind_errors(module);
  moe_ep::bindings::bind_types(module);
  moe_ep::bindings::bind_comm(module);
  moe_ep::bindings::bind_communication(module);
  moe_ep::bindings::bind_a2a(module);
  moe_ep::bindings::bind_workspace(module);
  moe_ep::bindings::bind_inspect(module);
  module.def(
      "set_log_sink",
      [](nb::object sink) {
        if (sink.is_none()) {
          moe_ep::set_log_sink({});
          return;
        }
        moe_ep::set_log_sink([sink](const std::string& message) {
          const nb::gil_scoped_acquire gil;
          sink(message);
        });
      },
      nb::arg("sink").none(),
      "Call `sink(message)` for every warning; None restores standard error.");
}
