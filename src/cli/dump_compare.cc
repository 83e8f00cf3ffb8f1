// Compares two tensors of dumps bit by bit and says how far apart the values are.
#include "cli/dump_compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "format/packed.h"
#include "format/table.h"

namespace megamoe::cli {
namespace {

/// Elements of one type: their bits as numbers, in the order of their values, and as text.
class Elements {
 public:
  explicit Elements(DType dtype)
      : dtype_(dtype), bits_(dtype_bits(dtype)), format_(format::find_format(dtype)) {}

  /// The bits of element i, widened with the sign of an integer.
  int64_t load(const void* data, int64_t i) const {
    if (dtype_ == DType::kInt64) return static_cast<const int64_t*>(data)[i];
    const uint32_t code = format::read_code(data, bits_, i);
    if (dtype_ == DType::kInt32) return static_cast<int32_t>(code);
    const bool integer = dtype_ == DType::kInt8 || dtype_ == DType::kInt4;
    return integer ? std::llround(value(code)) : int64_t{code};
  }
  bool is_nan(int64_t element) const {
    return floating() && std::isnan(value(static_cast<uint32_t>(element)));
  }
  /// Grows by one from each representable number to the next; both zeros are 0.
  int64_t position(int64_t element) const {
    if (!floating() || dtype_ == DType::kFloat8E8M0) return element;
    const int64_t sign = int64_t{1} << (bits_ - 1);
    return element < sign ? element : sign - element;
  }
  std::string text(int64_t element) const {
    if (!floating()) return std::to_string(element);
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.9g", double{value(static_cast<uint32_t>(element))});
    return buffer;
  }

 private:
  bool floating() const { return format_ != nullptr && dtype_ != DType::kInt8 && dtype_ != DType::kInt4; }
  float value(uint32_t code) const { return format_->decode(code); }

  DType dtype_;
  int bits_;
  const format::FormatInfo* format_;
};

}  // namespace

TensorDifference compare_tensors(const TensorView& a, const TensorView& b, std::optional<int64_t> ulps) {
  const Elements type(a.dtype);
  const int64_t columns = a.dims < 2 ? 1 : a.shape[1];
  TensorDifference result;
  result.elements = a.elements();
  for (int64_t i = 0; i < result.elements; ++i) {
    const int64_t left = type.load(a.data, i), right = type.load(b.data, i);
    if (left == right) continue;
    const bool nan = type.is_nan(left) || type.is_nan(right);
    if (nan && type.is_nan(left) && type.is_nan(right)) continue;
    const int64_t apart = std::abs(type.position(left) - type.position(right));
    if (!nan && ulps && apart <= *ulps) continue;
    ++result.differing;
    if (nan) {
      ++result.nans;
    } else {
      result.most_ulps = std::max(result.most_ulps, apart);
    }
    if (result.first) continue;
    result.first = {i / columns, i % columns, type.text(left), type.text(right), {}};
    if (!nan) result.first->ulps = apart;
  }
  return result;
}

}  // namespace megamoe::cli
