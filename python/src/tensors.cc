// Views of arrays of other libraries, with the element type given by name.
#include "tensors.h"

#include <string>
#include <utility>

#include "errors.h"

namespace nb = nanobind;

namespace megamoe::python {
namespace {

/// Turns a view of bytes into one of their elements, two per byte. Columns with gaps between them keep a
/// stride that the operators refuse.
template <class Void>
void widen(BasicTensor<Void>& tensor, bool strided) {
  const int last = tensor.dims - 1;
  tensor.shape[last] *= 2;
  if (!strided) return tensor.set_contiguous();
  for (int i = 0; i < last; ++i) tensor.strides[i] *= 2;
  const bool contiguous = tensor.strides[last] == 1 || tensor.shape[last] <= 2;
  tensor.strides[last] = contiguous ? 1 : 2 * tensor.strides[last];
}

template <class Void, class Array>
BasicTensor<Void> describe(const char* name, const Array& array, const char* dtype_text) {
  BasicTensor<Void> tensor;
  tensor.dtype = dtype_from_name(dtype_text);
  const bool packed = dtype_bits(tensor.dtype) == 4;
  if (tensor.dtype == DType::kUndefined || (packed ? 8 : dtype_bits(tensor.dtype)) != array.dtype().bits) {
    raise(Status(Code::kInvalidType, std::string(name) + " = elements of " +
                                         std::to_string(array.dtype().bits) + " bits: expected " +
                                         dtype_text));
  }
  if (array.ndim() > static_cast<size_t>(kMaxDims)) {
    raise(Status(Code::kInvalidArgument, std::string(name) + " has " + std::to_string(array.ndim()) +
                                             " dimensions: expected at most " + std::to_string(kMaxDims)));
  }
  tensor.data = array.data();
  tensor.dims = static_cast<int>(array.ndim());
  for (int i = 0; i < tensor.dims; ++i) tensor.shape[i] = static_cast<int64_t>(array.shape(i));
  tensor.set_contiguous();
  const bool strided = array.stride_ptr() != nullptr && array.size() != 0;  // of no elements they may be 0
  if (strided) {
    for (int i = 0; i < tensor.dims; ++i) tensor.strides[i] = array.stride(i);
  }
  if (packed && tensor.dims > 0) widen(tensor, strided);
  return tensor;
}

}  // namespace

void bind_tensors(nb::module_& module) {
  nb::class_<Input>(module, "Input", "An array the library reads; `name` is the argument it stands for.")
      .def(
          "__init__",
          [](Input* self, const char* name, InputArray array, const char* dtype) {
            TensorView view = describe<const void>(name, array, dtype);
            new (self) Input{std::move(array), view};
          },
          nb::arg("name"), nb::arg("array").noconvert(), nb::arg("dtype"));
  nb::class_<Output>(module, "Output", "An array the library writes; `name` is the argument it stands for.")
      .def(
          "__init__",
          [](Output* self, const char* name, OutputArray array, const char* dtype) {
            TensorRef ref = describe<void>(name, array, dtype);
            new (self) Output{std::move(array), ref};
          },
          nb::arg("name"), nb::arg("array").noconvert(), nb::arg("dtype"));
}

}  // namespace megamoe::python
