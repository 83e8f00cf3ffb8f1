// Bit comparison and error norms of tensors.
#include "cli/case_compare.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "format/bf16.h"
#include "format/float16.h"

namespace megamoe::cli {
namespace {

uint64_t load_bits(DType dtype, const std::vector<std::byte>& bytes, int64_t i) {
  const int bits = dtype_bits(dtype);
  if (bits == 4) return (std::to_integer<uint64_t>(bytes[i / 2]) >> (i % 2 * 4)) & 0xf;
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + i * (bits / 8), bits / 8);
  return value;
}

// A NaN of a floating type; types without NaN have none.
bool is_nan(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::kFloat32:
      return (bits & 0x7fffffff) > 0x7f800000;
    case DType::kFloat16:
      return (bits & 0x7fff) > 0x7c00;
    case DType::kBFloat16:
      return (bits & 0x7fff) > 0x7f80;
    case DType::kFloat8E4M3:
      return (bits & 0x7f) == 0x7f;
    case DType::kFloat8E5M2:
      return (bits & 0x7f) > 0x7c;
    default:
      return false;
  }
}

bool same(DType dtype, uint64_t a, uint64_t b) {
  return a == b || (is_nan(dtype, a) && is_nan(dtype, b));
}

// Types whose elements have a value here; of the others the bits are shown.
bool has_value(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt8:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUInt8:
    case DType::kUInt64:
      return true;
    default:
      return false;
  }
}

double value_of(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::kFloat32:
      return std::bit_cast<float>(static_cast<uint32_t>(bits));
    case DType::kFloat16:
      return format::f16_to_float(static_cast<uint16_t>(bits));
    case DType::kBFloat16:
      return format::bf16_to_float(static_cast<uint16_t>(bits));
    case DType::kInt8:
      return static_cast<int8_t>(bits);
    case DType::kInt32:
      return static_cast<int32_t>(bits);
    case DType::kInt64:
      return static_cast<double>(static_cast<int64_t>(bits));
    default:
      return static_cast<double>(bits);
  }
}

std::string shown(DType dtype, uint64_t bits) {
  char text[64];
  switch (dtype) {
    case DType::kInt8:
    case DType::kInt32:
    case DType::kUInt8:
      return std::to_string(static_cast<int64_t>(value_of(dtype, bits)));
    case DType::kInt64:
      return std::to_string(static_cast<int64_t>(bits));
    case DType::kUInt64:
      return std::to_string(bits);
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16:
      std::snprintf(text, sizeof(text), "%.9g (0x%0*llx)", value_of(dtype, bits), dtype_bits(dtype) / 4,
                    static_cast<unsigned long long>(bits));
      return text;
    default:
      std::snprintf(text, sizeof(text), "0x%0*llx", dtype_bits(dtype) / 4,
                    static_cast<unsigned long long>(bits));
      return text;
  }
}

std::string index_text(const std::vector<int64_t>& shape, int64_t flat) {
  std::vector<int64_t> index(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    index[i] = flat % shape[i];
    flat /= shape[i];
  }
  std::string text;
  for (int64_t i : index) text.append("[").append(std::to_string(i)).append("]");
  return text;
}

// "y.r0[3][17] = 1.5: expected 1.25"
std::string difference(const CaseTensor& expected, const std::vector<std::byte>& got, int64_t i) {
  return expected.key + index_text(expected.storage_shape, i) + " = " +
         shown(expected.dtype, load_bits(expected.dtype, got, i)) + ": expected " +
         shown(expected.dtype, load_bits(expected.dtype, expected.bytes, i));
}

int64_t element_count(const CaseTensor& tensor) {
  int64_t count = 1;
  for (int64_t extent : tensor.storage_shape) count *= extent;
  return count;
}

void compare_within(const CaseTensor& expected, const std::vector<std::byte>& got, int64_t count,
                    CompareResult& result) {
  double difference_square = 0;
  double wanted_square = 0;
  int64_t first_misplaced = -1;
  int64_t worst = -1;
  for (int64_t i = 0; i < count; ++i) {
    const double have = value_of(expected.dtype, load_bits(expected.dtype, got, i));
    const double want = value_of(expected.dtype, load_bits(expected.dtype, expected.bytes, i));
    if (!std::isfinite(have) || !std::isfinite(want)) {
      const bool placed = have == want || (std::isnan(have) && std::isnan(want));
      if (!placed && first_misplaced < 0) first_misplaced = i;
      continue;
    }
    const double off = std::fabs(have - want);
    if (off > result.max_abs) {
      result.max_abs = off;
      worst = i;
    }
    difference_square += off * off;
    wanted_square += want * want;
  }
  if (difference_square > 0) {
    result.rel_fro = wanted_square > 0 ? std::sqrt(difference_square / wanted_square)
                                       : std::numeric_limits<double>::infinity();
  }
  result.pass = first_misplaced < 0 && result.max_abs <= expected.tolerance.max_abs &&
                result.rel_fro <= expected.tolerance.rel_fro;
  char figures[160];
  std::snprintf(figures, sizeof(figures), "; rel_fro %.3g of %.3g, max_abs %.3g of %.3g", result.rel_fro,
                expected.tolerance.rel_fro, result.max_abs, expected.tolerance.max_abs);
  const int64_t shown_index = first_misplaced >= 0 ? first_misplaced : worst;
  if (!result.pass) result.first = shown_index;
  if (shown_index >= 0) result.message = difference(expected, got, shown_index) + figures;
}

}  // namespace

CompareResult compare(const CaseTensor& expected, const std::vector<std::byte>& got) {
  CompareResult result;
  if (got.size() != expected.bytes.size()) {
    result.message = expected.key + " has " + std::to_string(got.size()) + " bytes: expected " +
                     std::to_string(expected.bytes.size());
    return result;
  }
  const int64_t count = element_count(expected);
  int64_t first = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (same(expected.dtype, load_bits(expected.dtype, got, i), load_bits(expected.dtype, expected.bytes, i)))
      continue;
    ++result.differing;
    if (first < 0) first = i;
  }
  const std::string share =
      "; " + std::to_string(result.differing) + " of " + std::to_string(count) + " differ";
  if (expected.tolerance.exact || !has_value(expected.dtype)) {
    result.pass = result.differing == 0;
    result.first = first;
    if (!result.pass) result.message = difference(expected, got, first) + share;
    return result;
  }
  compare_within(expected, got, count, result);
  if (!result.message.empty()) result.message += share;
  return result;
}

}  // namespace megamoe::cli
