#include "comm.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <chrono>

#include "parts.hpp"

namespace moe_ep::bindings {
namespace {

class PythonComm final : public CommBackend {
 public:
  PythonComm(nb::object backend, nb::object group)
      : backend_(std::move(backend)), group_(std::move(group)) {}
  ~PythonComm() override {
    const nb::gil_scoped_acquire gil;
    backend_.reset();
    group_.reset();
  }

  int get_rank() const override {
    const nb::gil_scoped_acquire gil;
    return nb::cast<int>(backend_.attr("Get_rank")());
  }
  int get_size() const override {
    const nb::gil_scoped_acquire gil;
    return nb::cast<int>(backend_.attr("Get_size")());
  }
  std::vector<std::string> allgather(std::string_view message) override {
    const nb::gil_scoped_acquire gil;
    std::vector<std::string> messages;
    for (nb::handle entry : backend_.attr("allgather")(nb::bytes(message.data(), message.size()))) {
      messages.push_back(to_string(entry, "allgather"));
    }
    return messages;
  }
  std::string bcast(std::string_view message, int root) override {
    const nb::gil_scoped_acquire gil;
    return to_string(backend_.attr("bcast")(nb::bytes(message.data(), message.size()), root),
                     "bcast");
  }
  void barrier() override {
    const nb::gil_scoped_acquire gil;
    backend_.attr("barrier")();
  }
  std::shared_ptr<CommBackend> split(int color, int key) override {
    const nb::gil_scoped_acquire gil;
    nb::object part = backend_.attr("Split")(color, key);
    return std::make_shared<PythonComm>(part, part);
  }
  const void* identity() const override { return group_.ptr(); }

 private:
  static std::string to_string(nb::handle message, const char* operation) {
    if (!PyBytes_Check(message.ptr())) {
      throw std::runtime_error(std::string("comm backend: ") + operation +
                               " must return the bytes it was given, got " +
                               nb::cast<std::string>(message.type().attr("__name__")));
    }
    const auto bytes = nb::borrow<nb::bytes>(message);
    return {bytes.c_str(), bytes.size()};
  }

  nb::object backend_;
  nb::object group_;
};

nb::bytes to_bytes(const std::string& message) {
  return nb::bytes(message.data(), message.size());
}

std::string_view to_view(const nb::bytes& message) {
  return {message.c_str(), message.size()};
}

std::chrono::milliseconds to_timeout(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

}  // namespace

std::shared_ptr<CommBackend> wrap_comm(nb::object backend, nb::object group) {
  if (backend.is_none()) return nullptr;
  // Our own backends are C++ already; their set-up needs no Python.
  nb::object core = nb::getattr(backend, "core", nb::none());
  if (nb::isinstance<CommBackend>(core)) return nb::cast<std::shared_ptr<CommBackend>>(core);
  return std::make_shared<PythonComm>(std::move(backend), std::move(group));
}

void bind_comm(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<CommBackend>(module, "CommBackend", "Collectives of bytes between ranks.")
      .def("get_rank", &CommBackend::get_rank)
      .def("get_size", &CommBackend::get_size)
      .def(
          "allgather",
          [](CommBackend& comm, const nb::bytes& message) {
            std::vector<std::string> messages;
            {
              const nb::gil_scoped_release release;
              messages = comm.allgather(to_view(message));
            }
            nb::list result;
            for (const std::string& entry : messages)
              result.append(to_bytes(entry));
            return result;
          },
          "message"_a, nb::sig("def allgather(self, message: bytes) -> list[bytes]"))
      .def(
          "bcast",
          [](CommBackend& comm, const nb::bytes& message, int root) {
            std::string result;
            {
              const nb::gil_scoped_release release;
              result = comm.bcast(to_view(message), root);
            }
            return to_bytes(result);
          },
          "message"_a, "root"_a)
      .def("barrier", &CommBackend::barrier, nb::call_guard<nb::gil_scoped_release>())
      .def("split", &CommBackend::split, "color"_a, "key"_a,
           nb::call_guard<nb::gil_scoped_release>());

  nb::class_<LocalGroup>(module, "LocalGroup", "Ranks that are threads of this process.")
      .def(
          "__init__",
          [](LocalGroup* self, int size, double timeout_sec) {
            new (self) LocalGroup(size, to_timeout(timeout_sec));
          },
          "size"_a, "timeout_sec"_a = 300.0)
      .def_prop_ro("size", &LocalGroup::size)
      .def("backend", &LocalGroup::backend, "rank"_a);

  nb::class_<UnixSocketBackend, CommBackend>(module, "UnixSocketBackend",
                                             "Ranks of one host, joined through a Unix socket.")
      .def(
          "__init__",
          [](UnixSocketBackend* self, const std::string& path, int rank, int world_size,
             double timeout_sec) {
            const nb::gil_scoped_release release;
            new (self) UnixSocketBackend(path, rank, world_size, to_timeout(timeout_sec));
          },
          "path"_a, "rank"_a, "world_size"_a, "timeout_sec"_a = 300.0);
}

}  // namespace moe_ep::bindings
