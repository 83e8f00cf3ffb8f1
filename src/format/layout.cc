// Copies of matrices between the plain and the fractal layouts.
#include <algorithm>
#include <cstring>
#include <limits>

#include "format/check.h"
#include "format/fractal.h"
#include "megamoe/quantise.h"

namespace megamoe {
namespace {

/// A matrix in units of whole bytes: two 4-bit elements are one unit.
struct UnitMatrix {
  int64_t rows, cols, unit_bytes;
  bool plain;
  int64_t row_stride, col_stride;  ///< plain: units
  format::Fractal fractal;         ///< otherwise

  int64_t offset(int64_t r, int64_t c) const {
    return plain ? r * row_stride + c * col_stride : fractal.offset(r, c);
  }
  /// Units after (r, c) in the same row that follow one another in memory, (r, c) included.
  int64_t run(int64_t c) const {
    if (!plain) return std::min(cols - c, fractal.c0 - c % fractal.c0);
    return col_stride == 1 ? cols - c : 1;
  }
};

template <class Void>
UnitMatrix unit_matrix(const BasicTensor<Void>& t) {
  const int per_unit = dtype_bits(t.dtype) == 4 ? 2 : 1;
  UnitMatrix m{};
  m.rows = t.shape[t.dims - 2];
  m.cols = t.shape[t.dims - 1] / per_unit;
  m.unit_bytes = std::max(1, dtype_bits(t.dtype) / 8);
  m.plain = t.layout == Layout::kNd;
  m.row_stride = t.strides[t.dims - 2] / per_unit;
  m.col_stride = t.strides[t.dims - 1];
  if (!m.plain) m.fractal = {m.rows, m.cols, format::fractal_c0(t.dtype, t.layout) / per_unit};
  return m;
}

Status check_matrix(const TensorView& t, const char* name) {
  MEGAMOE_RETURN_IF_ERROR(format::check_extents(t, name));
  if (t.dims < 2) return format::wrong_shape(t, name, "a matrix or a stack of matrices");
  const bool nibbles = dtype_bits(t.dtype) == 4;
  if (nibbles && t.shape[t.dims - 1] % 2 != 0) {
    return format::wrong_shape(t, name, "an even last extent for " + std::string(dtype_name(t.dtype)));
  }
  if (t.layout != Layout::kNd) {
    if (format::fractal_c0(t.dtype, t.layout) != 0) return Status::ok();
    return Status(Code::kInvalidArgument, std::string(name) + " has layout " + layout_name(t.layout) +
                                              ": expected one that is defined for " + dtype_name(t.dtype));
  }
  MEGAMOE_RETURN_IF_ERROR(format::check_plain(t, name));
  for (int i = 0; nibbles && i < t.dims - 1; ++i) {
    if (t.shape[i] > 1 && t.strides[i] % 2 != 0) {
      return Status(Code::kInvalidArgument, std::string(name) + " has stride " +
                                                std::to_string(t.strides[i]) + ": expected an even one for " +
                                                dtype_name(t.dtype));
    }
  }
  return Status::ok();
}

/// Offset in units of matrix `number` of a stack.
template <class Void>
int64_t matrix_offset(const BasicTensor<Void>& t, const UnitMatrix& m, int64_t number) {
  if (!m.plain) return number * m.fractal.elements();
  int64_t offset = 0;
  for (int i = t.dims - 3; i >= 0; --i) {
    offset += number % t.shape[i] * t.strides[i];
    number /= t.shape[i];
  }
  return dtype_bits(t.dtype) == 4 ? offset / 2 : offset;
}

}  // namespace

Result<std::array<int64_t, 4>> fractal_storage_shape(DType dtype, Layout layout, int64_t rows,
                                                     int64_t columns) {
  const int64_t c0 = format::fractal_c0(dtype, layout);
  if (c0 == 0) {
    return Status(Code::kInvalidArgument, std::string("layout ") + layout_name(layout) +
                                              ": expected one that is defined for " + dtype_name(dtype));
  }
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;  // padding must not overflow
  if (rows < 0 || columns < 0 || rows > kMost || columns > kMost) {
    return Status(Code::kInvalidArgument, "matrix of " + std::to_string(rows) + " x " +
                                              std::to_string(columns) + ": expected sizes of 0 or more");
  }
  return format::Fractal{rows, columns, c0}.storage_shape();
}

Status convert_layout(const TensorView& x, const TensorRef& y) {
  if (!x.present()) return Status(Code::kInvalidArgument, "x is missing: expected a tensor");
  MEGAMOE_RETURN_IF_ERROR(check_matrix(x, "x"));
  MEGAMOE_RETURN_IF_ERROR(format::check_type(view(y), "y", {x.dtype}));
  MEGAMOE_RETURN_IF_ERROR(format::check_same_shape(view(y), "y", x));
  MEGAMOE_RETURN_IF_ERROR(check_matrix(view(y), "y"));

  const UnitMatrix from = unit_matrix(x), to = unit_matrix(y);
  int64_t matrices = 1;
  for (int i = 0; i < x.dims - 2; ++i) matrices *= x.shape[i];
  for (int64_t number = 0; number < matrices; ++number) {
    const auto* source =
        static_cast<const std::byte*>(x.data) + matrix_offset(x, from, number) * from.unit_bytes;
    auto* target = static_cast<std::byte*>(y.data) + matrix_offset(y, to, number) * to.unit_bytes;
    if (!to.plain) std::fill_n(target, to.fractal.elements() * to.unit_bytes, std::byte{0});
    for (int64_t r = 0; r < from.rows; ++r) {
      for (int64_t c = 0; c < from.cols;) {
        const int64_t run = std::min(from.run(c), to.run(c));
        std::memcpy(target + to.offset(r, c) * to.unit_bytes, source + from.offset(r, c) * from.unit_bytes,
                    static_cast<size_t>(run * from.unit_bytes));
        c += run;
      }
    }
  }
  return Status::ok();
}

}  // namespace megamoe
