// Views of arrays of other libraries, with the element type given by name.
#include "tensors.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "megamoe/quantise.h"

namespace nb = nanobind;

namespace megamoe::python {
namespace {

constexpr int64_t kMaxFractalExtent = int64_t{1} << 30;

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

/// Matrices in a fractal layout: `shape` is logical, `array` holds their padded storage in any shape.
template <class Void, class Array>
BasicTensor<Void> describe_fractal(const char* name, const Array& array, const char* dtype_text,
                                   const std::vector<int64_t>& shape, const std::string& layout_text) {
  const auto refuse = [&](const std::string& got, const std::string& expected) {
    raise(Status(Code::kInvalidArgument, std::string(name) + " has " + got + ": expected " + expected));
  };
  BasicTensor<Void> tensor;
  tensor.data = array.data();
  tensor.dtype = dtype_from_name(dtype_text);
  for (const Layout layout : {Layout::kFractalNz, Layout::kFractalNzC0_32}) {
    if (layout_text == layout_name(layout)) tensor.layout = layout;
  }
  if (tensor.layout == Layout::kNd) {
    refuse("layout " + layout_text,
           std::string(layout_name(Layout::kFractalNz)) + " or " + layout_name(Layout::kFractalNzC0_32));
  }
  tensor.dims = static_cast<int>(shape.size());
  if (tensor.dims < 2 || tensor.dims > kMaxDims) {
    refuse(std::to_string(tensor.dims) + " dimensions",
           "2 to " + std::to_string(kMaxDims) + " with layout " + layout_text);
  }
  std::copy(shape.begin(), shape.end(), tensor.shape);
  for (const int64_t extent : shape) {
    // The padded size of one matrix stays below 2^63 this way.
    if (extent < 0 || extent > kMaxFractalExtent) {
      refuse("shape " + tensor.shape_text(), "sizes in [0, 2^30]");
    }
  }
  tensor.set_contiguous();
  // Words of eight int4 lie in the narrow tiles of int4.
  const bool words = tensor.dtype == DType::kInt32 && tensor.layout == Layout::kFractalNzC0_32;
  const DType element = words ? DType::kInt4 : tensor.dtype;
  const auto storage = fractal_storage_shape(element, tensor.layout, shape[shape.size() - 2],
                                             words ? 8 * shape.back() : shape.back());
  if (!storage) refuse("layout " + layout_text, std::string("a type that has it, not ") + dtype_text);
  int64_t bits = dtype_bits(element);
  bool fits = true;
  for (const int64_t extent : storage.value()) fits &= !__builtin_mul_overflow(bits, extent, &bits);
  for (int i = 0; i < tensor.dims - 2; ++i) fits &= !__builtin_mul_overflow(bits, shape[i], &bits);
  if (!fits || bits / 8 != static_cast<int64_t>(array.nbytes())) {
    refuse(std::to_string(array.nbytes()) + " bytes", (fits ? std::to_string(bits / 8) : "fewer than 2^60") +
                                                          " for shape " + tensor.shape_text() +
                                                          " in layout " + layout_text);
  }
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
          nb::arg("name"), nb::arg("array").noconvert(), nb::arg("dtype"))
      .def_static(
          "fractal",
          [](const char* name, const nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig>& array,
             const char* dtype, const std::vector<int64_t>& shape, const std::string& layout) {
            InputArray storage(array);
            TensorView view = describe_fractal<const void>(name, storage, dtype, shape, layout);
            return Input{std::move(storage), view};
          },
          nb::arg("name"), nb::arg("array").noconvert(), nb::arg("dtype"), nb::arg("shape"),
          nb::arg("layout"), "Contiguous storage of matrices of logical shape `shape` in a fractal layout.");
  nb::class_<Output>(module, "Output", "An array the library writes; `name` is the argument it stands for.")
      .def(
          "__init__",
          [](Output* self, const char* name, OutputArray array, const char* dtype) {
            TensorRef ref = describe<void>(name, array, dtype);
            new (self) Output{std::move(array), ref};
          },
          nb::arg("name"), nb::arg("array").noconvert(), nb::arg("dtype"))
      .def_static(
          "fractal",
          [](const char* name, const nb::ndarray<nb::device::cpu, nb::c_contig>& array, const char* dtype,
             const std::vector<int64_t>& shape, const std::string& layout) {
            OutputArray storage(array);
            TensorRef ref = describe_fractal<void>(name, storage, dtype, shape, layout);
            return Output{std::move(storage), ref};
          },
          nb::arg("name"), nb::arg("array").noconvert(), nb::arg("dtype"), nb::arg("shape"),
          nb::arg("layout"), "Contiguous storage of matrices of logical shape `shape` in a fractal layout.");
}

}  // namespace megamoe::python
