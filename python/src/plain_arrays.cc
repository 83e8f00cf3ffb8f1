// NumPy through the structure of its array interface, torch through the exchange table of DLPack.
#include "plain_arrays.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <utility>

#include "errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace megamoe::python {
namespace {

/// Shape and strides in elements; false where they do not fit a view.
bool set_extents(TensorView& view, int dims, const auto* shape, const auto* strides, int64_t step_bytes) {
  if (dims > kMaxDims) return false;
  view.dims = dims;
  std::copy_n(shape, dims, view.shape);
  view.set_contiguous();
  if (strides == nullptr || view.elements() == 0) return true;  // of no elements they may be anything
  for (int i = 0; i < dims; ++i) {
    if (strides[i] % step_bytes != 0) return false;
    view.strides[i] = strides[i] / step_bytes;
  }
  return true;
}

class NumPy final : public Framework {
 public:
  NumPy(nb::handle module, nb::handle bfloat16)
      : empty_(module.attr("empty")),
        int32_(module.attr("dtype")("int32")),
        bfloat16_(nb::borrow(bfloat16)) {}

  std::optional<TensorView> view(nb::handle array) const override {
    // The structure that __array_struct__ points to, as NumPy documents it.
    struct Interface {
      int two, nd;
      char kind;
      int itemsize, flags;
      const Py_ssize_t *shape, *strides;
      void* data;
    };
    constexpr int kAligned = 0x100, kNative = 0x200;
    const nb::object capsule = nb::steal(PyObject_GetAttrString(array.ptr(), "__array_struct__"));
    const auto* const given =
        capsule ? static_cast<const Interface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr)) : nullptr;
    if (given == nullptr) {
      PyErr_Clear();
      return {};
    }
    TensorView view;
    view.data = given->data;
    view.dtype = type(array, given->kind, given->itemsize);
    const bool whole = (given->flags & kAligned) != 0 && (given->flags & kNative) != 0;
    if (!whole || !view.present()) return {};
    if (!set_extents(view, given->nd, given->shape, given->strides, given->itemsize)) return {};
    return view;
  }

  nb::object like(nb::handle array, const TensorView& view) const override {
    return empty_(nb::make_tuple(view.shape[0], view.shape[1]), array.attr("dtype"));
  }
  nb::object counts(int64_t n) const override { return empty_(n, int32_); }

 private:
  DType type(nb::handle array, char kind, int bytes) const {
    if (kind == 'f') return bytes == 4 ? DType::kFloat32 : bytes == 2 ? DType::kFloat16 : DType::kUndefined;
    if (kind == 'i') {
      return bytes == 4   ? DType::kInt32
             : bytes == 8 ? DType::kInt64
             : bytes == 1 ? DType::kInt8
                          : DType::kUndefined;
    }
    if (kind == 'b') return DType::kUInt8;
    // What NumPy did not define itself says no more than its size.
    return kind == 'V' && array.attr("dtype").is(bfloat16_) ? DType::kBFloat16 : DType::kUndefined;
  }

  nb::object empty_, int32_, bfloat16_;
};

class Torch final : public Framework {
 public:
  using ToTensor = int (*)(void*, nb::dlpack::dltensor*);

  Torch(nb::handle module, ToTensor to_tensor)
      : to_tensor_(to_tensor),
        empty_(module.attr("empty")),
        empty_like_(module.attr("empty_like")),
        contiguous_(module.attr("contiguous_format")),
        int32_(module.attr("int32")),
        is_neg_(nb::steal(PyUnicode_InternFromString("is_neg"))) {}

  std::optional<TensorView> view(nb::handle array) const override {
    nb::dlpack::dltensor given;
    if (to_tensor_(array.ptr(), &given) != 0) {  // such as of a sparse tensor
      PyErr_Clear();
      return {};
    }
    TensorView view;
    view.data = static_cast<const std::byte*>(given.data) + given.byte_offset;
    view.dtype = type(given.dtype);
    if (given.device.device_type != nb::device::cpu::value || !view.present()) return {};
    if (!set_extents(view, given.ndim, given.shape, given.strides, 1)) return {};
    // The memory holds the negatives of what the tensor stands for.
    if (nb::cast<bool>(array.attr(is_neg_)())) return {};
    return view;
  }

  nb::object like(nb::handle array, const TensorView& view) const override {
    return view.is_contiguous() ? empty_like_(array) : empty_like_(array, "memory_format"_a = contiguous_);
  }
  // Like a tensor that is at hand, which takes half the time of naming shape and type.
  nb::object counts(int64_t n) const override {
    if (!last_counts_ || n != last_n_) {
      nb::object made = empty_(nb::make_tuple(n), "dtype"_a = int32_, "device"_a = "cpu");
      if (framework_of(made) != this) return made;  // a mode of torch makes others, while it lasts
      last_counts_ = std::move(made);
      last_n_ = n;
    }
    return empty_like_(last_counts_);
  }

 private:
  static DType type(nb::dlpack::dtype given) {
    using Code = nb::dlpack::dtype_code;
    if (given.lanes != 1) return DType::kUndefined;
    switch (static_cast<Code>(given.code)) {
      case Code::Bfloat:
        return given.bits == 16 ? DType::kBFloat16 : DType::kUndefined;
      case Code::Float:
        return given.bits == 32 ? DType::kFloat32 : given.bits == 16 ? DType::kFloat16 : DType::kUndefined;
      case Code::Int:
        return given.bits == 32   ? DType::kInt32
               : given.bits == 64 ? DType::kInt64
               : given.bits == 8  ? DType::kInt8
                                  : DType::kUndefined;
      case Code::Bool:
        return DType::kUInt8;
      default:
        return DType::kUndefined;
    }
  }

  ToTensor to_tensor_;
  nb::object empty_, empty_like_, contiguous_, int32_, is_neg_;
  mutable nb::object last_counts_;
  mutable int64_t last_n_ = 0;
};

// Types of arrays and how to read them; they live until the interpreter ends.
struct Met {
  PyTypeObject* type = nullptr;
  const Framework* framework = nullptr;
} met_numpy, met_torch;

void meet(Met& met, nb::handle type, const Framework* framework) {
  met.type = reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr());
  met.framework = framework;
}

void meet_torch(nb::handle module) {
  // The head of the table, and its entries; later versions add behind them.
  struct Exchange {
    uint32_t major, minor;
    Exchange* previous;
    void *allocate, *from_object, *to_object;
    Torch::ToTensor to_tensor;
  };
  if (met_torch.type != nullptr) return;
  const nb::object type = module.attr("Tensor");
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return;
  auto* table = static_cast<Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (table != nullptr && table->major != 1) table = table->previous;
  if (table == nullptr || table->to_tensor == nullptr) return;
  meet(met_torch, type, new Torch(module, table->to_tensor));
}

}  // namespace

const Framework* framework_of(nb::handle array) {
  for (const Met* met : {&met_torch, &met_numpy}) {
    if (Py_TYPE(array.ptr()) == met->type) return met->framework;
  }
  return nullptr;
}

bool view_plain(nb::handle array, TensorView& view) {
  if (array.is_none()) return true;
  const Framework* const framework = framework_of(array);
  const std::optional<TensorView> read = framework == nullptr ? std::nullopt : framework->view(array);
  if (read) view = *read;
  return read.has_value();
}

void bind_plain_arrays(nb::module_& module) {
  module.def(
      "meet_numpy",
      [](nb::handle numpy, nb::handle bfloat16) {
        meet(met_numpy, numpy.attr("ndarray"), new NumPy(numpy, bfloat16));
      },
      "module"_a, "bfloat16"_a, "Lets calls read arrays of NumPy in place, also of this type of ml_dtypes.");
  module.def("meet_torch", &meet_torch, "module"_a, "The same for tensors, where this version of torch can.");
}

}  // namespace megamoe::python
