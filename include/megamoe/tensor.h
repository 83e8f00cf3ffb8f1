// Data types, layouts and non-owning views of tensors at the public interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "megamoe/export.h"
#include "megamoe/status.h"

namespace megamoe {

/// Element type of a tensor.
enum class DType : int32_t {
#define MEGAMOE_FORMAT(enumerator, name, bits, code) enumerator,
#include "megamoe/formats.inc"
#undef MEGAMOE_FORMAT
  kUndefined = -1,
};

/// Name of a type as in the operator documents ("bfloat16", "int8", ...); "undefined" for kUndefined.
MEGAMOE_API const char* dtype_name(DType dtype);
/// Type of a name, or kUndefined.
MEGAMOE_API DType dtype_from_name(std::string_view name);
/// Bits of one element; 0 for kUndefined.
MEGAMOE_API int dtype_bits(DType dtype);
/// Number of the operator documents (1 int8, 23 e5m2, 24 e4m3fn, 296 e2m1, 28 undefined); -1 where there is
/// none.
MEGAMOE_API int dtype_op_code(DType dtype);
/// Type of an operator number (28 gives kUndefined); an error for a number that names no type.
MEGAMOE_API Result<DType> dtype_from_op_code(int code);

/// How the elements of a matrix lie in memory (semantics of the operator documents).
enum class Layout : int32_t {
  kNd = 0,             ///< strides say
  kFractalNz = 1,      ///< tiles of 16 rows x C0 columns, C0 x element = 32 bytes, zero padded
  kFractalNzC0_32 = 2  ///< the same with C0 = 32 elements
};

/// "ND", "FRACTAL_NZ" or "FRACTAL_NZ_C0_32".
MEGAMOE_API const char* layout_name(Layout layout);
/// Layout of such a name; an error for any other.
MEGAMOE_API Result<Layout> layout_from_name(std::string_view name);

inline constexpr int kMaxDims = 5;

/// A view of memory the caller owns. `shape` is logical; `strides` are in elements and only used with kNd.
/// For 4-bit types the last dimension must be contiguous and shape counts elements.
template <class Void>
struct MEGAMOE_API BasicTensor {
  Void* data = nullptr;
  DType dtype = DType::kUndefined;
  Layout layout = Layout::kNd;
  int dims = 0;
  int64_t shape[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};

  BasicTensor() = default;
  /// A contiguous row-major tensor.
  BasicTensor(Void* pointer, DType type, std::initializer_list<int64_t> extents, Layout order = Layout::kNd)
      : data(pointer), dtype(type), layout(order), dims(static_cast<int>(extents.size())) {
    int i = 0;
    for (int64_t extent : extents) shape[i++] = extent;
    set_contiguous();
  }

  /// Strides of a row-major tensor of this shape.
  void set_contiguous() {
    int64_t step = 1;
    for (int i = dims - 1; i >= 0; --i) {
      strides[i] = step;
      step = times(step, shape[i]);
    }
  }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < dims; ++i) n = times(n, shape[i]);
    return n;
  }
  bool is_contiguous() const {
    int64_t step = 1;
    for (int i = dims - 1; i >= 0; --i) {
      if (shape[i] != 1 && strides[i] != step) return false;
      step = times(step, shape[i]);
    }
    return true;
  }
  /// Absent optional arguments have no type.
  bool present() const { return dtype != DType::kUndefined; }
  std::string shape_text() const;  ///< "(4, 128)"

 private:
  /// Wraps around where the product does not fit: shapes are not checked yet when a view is made.
  static int64_t times(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
};

using TensorView = BasicTensor<const void>;
using TensorRef = BasicTensor<void>;

/// The same memory, to be read only.
inline TensorView view(const TensorRef& ref) {
  TensorView v;
  v.data = ref.data;
  v.dtype = ref.dtype;
  v.layout = ref.layout;
  v.dims = ref.dims;
  for (int i = 0; i < kMaxDims; ++i) {
    v.shape[i] = ref.shape[i];
    v.strides[i] = ref.strides[i];
  }
  return v;
}

extern template struct BasicTensor<const void>;
extern template struct BasicTensor<void>;

}  // namespace megamoe
