// Whether elements of matrices share memory, by their strides.
#include "moe/overlap.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace megamoe::moe {
namespace {

/// Rows as intervals of bytes, by ascending address.
struct RowSpans {
  int64_t first;  ///< address of the lowest row
  int64_t step;   ///< from a row to the next, >= 0
  int64_t width;
  int64_t rows;

  explicit RowSpans(const TensorView& t)
      : first(static_cast<int64_t>(reinterpret_cast<intptr_t>(t.data))),
        step(bytes(t, t.strides[0])),
        width(bytes(t, t.shape[1])),
        rows(t.shape[0]) {
    if (step >= 0) return;
    first += (rows - 1) * step;
    step = -step;
  }
  int64_t end() const { return first + (rows - 1) * step + width; }

  static int64_t bytes(const TensorView& t, int64_t elements) { return elements * dtype_bits(t.dtype) / 8; }
};

bool side_by_side(const TensorView& t) {
  return t.shape[1] == 1 || t.strides[1] == 1;
}

}  // namespace

bool elements_overlap(const TensorView& matrix) {
  // The shorter step first; more than one element along a dimension makes it count.
  int64_t step[2], count[2];
  int dims = 0;
  for (int d = 0; d < 2; ++d) {
    if (matrix.shape[d] <= 1) continue;
    step[dims] = std::abs(matrix.strides[d]);
    count[dims++] = matrix.shape[d];
  }
  if (dims == 0) return false;
  if (dims == 1) return step[0] == 0;
  if (step[0] > step[1]) {
    std::swap(step[0], step[1]);
    std::swap(count[0], count[1]);
  }
  if (step[0] == 0) return true;
  // Elements (i, j) and (i', j') meet where (i - i') step0 = (j' - j) step1, the smallest such pair first.
  int64_t a = step[0], b = step[1];
  while (b != 0) a = std::exchange(b, a % b);
  return step[1] / a < count[0] && step[0] / a < count[1];
}

bool rows_overlap(const TensorView& a, const TensorView& b) {
  if (a.elements() == 0 || b.elements() == 0 || !side_by_side(a) || !side_by_side(b)) return false;
  const RowSpans x(a), y(b);
  if (x.end() <= y.first || y.end() <= x.first) return false;
  for (int64_t r = 0; r < y.rows; ++r) {
    // Rows k of x that begin before this row ends and end after it begins.
    const int64_t begin = y.first + r * y.step - x.first, end = begin + y.width;
    if (end <= 0) continue;
    const int64_t last = x.step == 0 ? 0 : std::min(x.rows - 1, (end - 1) / x.step);
    if (last * x.step + x.width > begin) return true;
  }
  return false;
}

}  // namespace megamoe::moe
