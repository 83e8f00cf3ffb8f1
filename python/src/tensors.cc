// Views of arrays of other libraries, with the element type given by name.
#include "tensors.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "format/fractal.h"

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
TensorView describe_fractal(const char* name, const InputArray& array, const char* dtype_text,
                            const std::vector<int64_t>& shape, const std::string& layout_text) {
  TensorView tensor;
  tensor.data = array.data();
  tensor.dtype = dtype_from_name(dtype_text);
  for (const Layout layout : {Layout::kFractalNz, Layout::kFractalNzC0_32}) {
    if (layout_text == layout_name(layout)) tensor.layout = layout;
  }
  const std::string who = name;
  if (tensor.layout == Layout::kNd) {
    raise(Status(Code::kInvalidArgument, who + " has layout " + layout_text + ": expected " +
                                             layout_name(Layout::kFractalNz) + " or " +
                                             layout_name(Layout::kFractalNzC0_32)));
  }
  const int64_t c0 = format::fractal_c0(tensor.dtype, tensor.layout);
  if (c0 == 0) {
    raise(Status(Code::kInvalidArgument,
                 who + " has layout " + layout_text + ": expected a type that has it, not " + dtype_text));
  }
  tensor.dims = static_cast<int>(shape.size());
  if (tensor.dims != 2 && tensor.dims != 3) {
    raise(Status(Code::kInvalidArgument, who + " has " + std::to_string(tensor.dims) +
                                             " dimensions: expected 2 or 3 with layout " + layout_text));
  }
  std::copy(shape.begin(), shape.end(), tensor.shape);
  int64_t matrices = 1;
  for (int i = 0; i < tensor.dims; ++i) {
    // The padded size of one matrix stays below 2^63 this way.
    if (shape[i] < 0 || shape[i] > kMaxFractalExtent) {
      raise(Status(Code::kInvalidArgument,
                   who + " has shape " + tensor.shape_text() + ": expected sizes in [0, 2^30]"));
    }
    if (i < tensor.dims - 2) matrices = shape[i];
  }
  tensor.set_contiguous();
  const format::Fractal fractal{shape[shape.size() - 2], shape.back(), c0};
  int64_t elements = 0;
  const bool fits = !__builtin_mul_overflow(matrices, fractal.elements(), &elements) &&
                    elements <= INT64_MAX / dtype_bits(tensor.dtype);
  const int64_t bytes = fits ? elements * dtype_bits(tensor.dtype) / 8 : -1;
  if (bytes != static_cast<int64_t>(array.nbytes())) {
    raise(Status(Code::kInvalidArgument,
                 who + " has " + std::to_string(array.nbytes()) + " bytes: expected " +
                     (fits ? std::to_string(bytes) : "fewer than 2^63") + " for shape " +
                     tensor.shape_text() + " in layout " + layout_text));
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
            TensorView view = describe_fractal(name, storage, dtype, shape, layout);
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
          nb::arg("name"), nb::arg("array").noconvert(), nb::arg("dtype"));
}

}  // namespace megamoe::python
