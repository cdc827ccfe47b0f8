// Tensors arrive through DLPack's C exchange API: a table of functions that a tensor type publishes
// as `__dlpack_c_exchange_api__` (torch >= 2.10). Filling a view through it costs about 70 ns,
// where the Python-level `__dlpack__` costs 2 us. Types without the table take the latter. Layouts:
// https://dmlc.github.io/dlpack/latest/c_api.html

#include "tensor.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>
#include <unordered_map>

#include <moe_ep/error.hpp>

namespace moe_ep::bindings {
namespace {

struct DlTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t ndim;
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct ExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  ExchangeApi* prev;
  void* allocate;
  void* managed_from_py;
  void* managed_to_py;
  int (*tensor_from_py)(void* object, DlTensor* out);
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

// How tensors of one Python type are read.
struct TypeEntry {
  const ExchangeApi* api = nullptr;
  bool has_memory = true;
};

const ExchangeApi* find_api(nb::handle type) {
  nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* api = static_cast<ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->major != 1)
    api = api->prev;
  return api;
}

// Looked up once a type; types live as long as the process in practice, and an entry for a type
// that died and whose address a new one took is prevented by holding a reference.
const TypeEntry& entry_of(nb::handle object) {
  static auto* entries = new std::unordered_map<PyObject*, TypeEntry>();
  nb::handle type = object.type();
  const auto found = entries->find(type.ptr());
  if (found != entries->end()) return found->second;
  type.inc_ref();
  TypeEntry entry;
  entry.api = find_api(type);
  const std::string name = nb::cast<std::string>(type.attr("__name__"));
  // Tensors of a tracer: their pointers lead nowhere.
  entry.has_memory = name != "FakeTensor" && name != "FunctionalTensor";
  return entries->emplace(type.ptr(), entry).first->second;
}

bool has_lazy_bit(nb::handle object, std::uint8_t code) {
  if (nb::cast<bool>(object.attr("is_neg")())) return true;
  return code == kComplex64.code && nb::cast<bool>(object.attr("is_conj")());
}

[[noreturn]] void refuse(const char* operation, const char* name, nb::handle object) {
  throw TypeMismatchError(std::string(operation) + ": " + name +
                          " must be a tensor with memory of its own, got " +
                          nb::cast<std::string>(object.type().attr("__name__")));
}

void set_shape(TensorView& view, std::int64_t ndim, const std::int64_t* shape,
               const std::int64_t* strides, const char* operation, const char* name) {
  if (ndim > TensorView::kMaxDims) {
    throw std::invalid_argument(std::string(operation) + ": " + name + " must have at most " +
                                std::to_string(TensorView::kMaxDims) + " dimensions, got " +
                                std::to_string(ndim));
  }
  view.ndim = static_cast<int>(ndim);
  std::int64_t packed = 1;
  for (int dim = view.ndim - 1; dim >= 0; --dim) {
    const auto index = static_cast<std::size_t>(dim);
    view.shape[index] = shape[dim];
    view.strides[index] = strides != nullptr ? strides[dim] : packed;
    packed *= shape[dim];
  }
}

TensorView view_by_protocol(nb::handle object, const char* operation, const char* name) {
  nb::ndarray<> array;
  if (!nb::try_cast<nb::ndarray<>>(object, array)) refuse(operation, name, object);
  TensorView view;
  view.data = array.data();
  view.dtype = {array.dtype().code, array.dtype().bits, array.dtype().lanes};
  view.device = {array.device_type(), array.device_id()};
  std::int64_t shape[TensorView::kMaxDims + 1] = {};
  std::int64_t strides[TensorView::kMaxDims + 1] = {};
  for (std::size_t dim = 0; dim < array.ndim() && dim < std::size(shape); ++dim) {
    shape[dim] = static_cast<std::int64_t>(array.shape(dim));
    strides[dim] = array.stride(dim);
  }
  set_shape(view, static_cast<std::int64_t>(array.ndim()), shape, strides, operation, name);
  return view;
}

}  // namespace

TensorView view_of(nb::handle object, const char* operation, const char* name) {
  const TypeEntry& entry = entry_of(object);
  if (!entry.has_memory) refuse(operation, name, object);
  if (entry.api == nullptr) return view_by_protocol(object, operation, name);
  DlTensor tensor{};
  if (entry.api->tensor_from_py(object.ptr(), &tensor) != 0) {
    PyErr_Clear();
    refuse(operation, name, object);
  }
  // Lazy negation and conjugation are not in the memory.
  if (tensor.code != kInt32.code && has_lazy_bit(object, tensor.code)) {
    throw std::invalid_argument(std::string(operation) + ": " + name +
                                " must hold its values, got a negated or conjugated view (call "
                                "resolve_neg() or resolve_conj())");
  }
  TensorView view;
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.dtype = {tensor.code, tensor.bits, tensor.lanes};
  view.device = {tensor.device_type, tensor.device_id};
  set_shape(view, tensor.ndim, tensor.shape, tensor.strides, operation, name);
  return view;
}

std::uintptr_t current_stream_of(nb::handle tensor, Device device) {
  if (device.type == Device::kCpu) return 0;
  const ExchangeApi* api = entry_of(tensor).api;
  if (api == nullptr) {
    const nb::object stream =
        nb::module_::import_("torch.cuda").attr("current_stream")(device.index);
    return nb::cast<std::uintptr_t>(stream.attr("cuda_stream"));
  }
  void* stream = nullptr;
  if (api->current_stream(device.type, device.index, &stream) != 0) throw nb::python_error();
  return reinterpret_cast<std::uintptr_t>(stream);
}

std::optional<TensorView> optional_view_of(nb::handle object, const char* operation,
                                           const char* name) {
  if (object.is_none()) return std::nullopt;
  return view_of(object, operation, name);
}

std::optional<std::int64_t> optional_int_of(nb::handle object, const char* operation,
                                            const char* name) {
  if (object.is_none()) return std::nullopt;
  std::int64_t value = 0;
  if (PyBool_Check(object.ptr()) || !nb::try_cast<std::int64_t>(object, value)) {
    throw TypeMismatchError(std::string(operation) + ": " + name +
                            " must be a 64-bit int or None, got " +
                            nb::cast<std::string>(nb::repr(object)));
  }
  return value;
}

std::optional<RankMask> optional_mask_of(nb::handle object, const char* operation, int num_ranks) {
  if (object.is_none()) return std::nullopt;
  const TensorView view = view_of(object, operation, "active_rank_mask");
  const int words = (num_ranks + 63) / 64;
  if (view.dtype != kUInt64 || view.ndim != 1 || view.size(0) < words ||
      view.size(0) > kRankMaskWords || !view.is_contiguous() || view.device.type != Device::kCpu) {
    throw std::invalid_argument(std::string(operation) +
                                ": active_rank_mask must be a contiguous CPU uint64 tensor of " +
                                std::to_string(words) + " to " + std::to_string(kRankMaskWords) +
                                " words, got " + describe(view));
  }
  RankMask mask;
  for (int word = 0; word < view.size(0); ++word) {
    mask.words[word] = static_cast<const std::uint64_t*>(view.data)[word];
  }
  return mask;
}

}  // namespace moe_ep::bindings
