// C++ exceptions as Python's: the one place of the mapping.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>

#include <moe_ep/error.hpp>

#include "parts.hpp"

namespace moe_ep::bindings {
namespace {

// Raises the class `name` of moe_ep.errors with these arguments.
template <class... Args>
void raise(const char* name, Args&&... args) {
  try {
    const nb::object type = nb::module_::import_("moe_ep.errors").attr(name);
    const nb::object error = type(std::forward<Args>(args)...);
    PyErr_SetObject(type.ptr(), error.ptr());
  } catch (nb::python_error& interrupt) {
    interrupt.restore();  // a signal that came while the call waited: KeyboardInterrupt
  }
}

void translate(const std::exception_ptr& pointer, void* /*payload*/) {
  try {
    std::rethrow_exception(pointer);
  } catch (const MoEEpTimeoutError& error) {
    raise("MoEEpTimeoutError", error.what(), nb::tuple(nb::cast(error.ranks())),
          phase_name(error.phase()));
  } catch (const MoEEpMismatchError& error) {
    raise("MoEEpMismatchError", error.what());
  } catch (const MoEEpError& error) {
    raise("MoEEpError", error.what());
  } catch (const TypeMismatchError& error) {
    raise("TypeMismatchError", error.what());
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_KeyError, error.what());
  } catch (const std::logic_error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

}  // namespace

void bind_errors(nb::module_& /*module*/) {
  nb::register_exception_translator(translate);
}

}  // namespace moe_ep::bindings
