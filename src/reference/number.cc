// Decoding by the fields of a code, rounding on the grid of a binade.
#include "reference/number.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "format/bf16.h"
#include "format/float16.h"
#include "reference/element.h"

namespace megamoe::reference {
namespace {

struct FormatRow {
  DType dtype;
  SmallFloat format;
};
constexpr FormatRow kSmallFloats[] = {{DType::kFloat8E4M3, {4, 3, 7, 448, 8}},
                                      {DType::kFloat8E5M2, {5, 2, 15, 57344, 15}},
                                      {DType::kFloat4E2M1, {2, 1, 1, 6, 2}}};

float decode(const SmallFloat& format, uint32_t code) {
  const uint32_t mantissa = code & ((1u << format.mantissa_bits) - 1);
  const uint32_t exponent = (code >> format.mantissa_bits) & ((1u << format.exponent_bits) - 1);
  const bool negative = (code >> (format.exponent_bits + format.mantissa_bits)) & 1u;
  double magnitude = exponent == 0
                         ? std::ldexp(mantissa, 1 - format.bias - format.mantissa_bits)
                         : std::ldexp((1u << format.mantissa_bits) + mantissa,
                                      static_cast<int>(exponent) - format.bias - format.mantissa_bits);
  // Codes past the largest value: E5M2 has infinity there, then NaN; E4M3 only NaN; E2M1 none.
  if (magnitude > format.largest) {
    const bool infinity = format.exponent_bits == 5 && mantissa == 0;
    magnitude = infinity ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return static_cast<float>(negative ? -magnitude : magnitude);
}

uint32_t nibble(const TensorView& tensor, int64_t offset) {
  const uint8_t pair = static_cast<const uint8_t*>(tensor.data)[offset / 2];
  return offset % 2 == 0 ? pair & 0xfu : pair >> 4;
}

float scale_of_byte(uint8_t byte) {
  return byte == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, byte - 127);
}

}  // namespace

const SmallFloat* small_float(DType dtype) {
  for (const FormatRow& row : kSmallFloats) {
    if (row.dtype == dtype) return &row.format;
  }
  return nullptr;
}

float round_saturating(const SmallFloat& format, double value) {
  if (std::isnan(value)) return 0;
  const double magnitude = std::min(std::fabs(value), double{format.largest});
  if (magnitude == 0) return static_cast<float>(value);
  // Values of one binade, and all subnormals, are multiples of the same step.
  const int exponent = std::max(std::ilogb(magnitude), 1 - format.bias);
  const double step = std::ldexp(1.0, exponent - format.mantissa_bits);
  const double rounded = std::nearbyint(magnitude / step) * step;
  return static_cast<float>(std::copysign(rounded, value));
}

float read_number(const TensorView& tensor, int64_t offset) {
  if (const SmallFloat* format = small_float(tensor.dtype)) {
    return decode(*format, dtype_bits(tensor.dtype) == 4 ? nibble(tensor, offset)
                                                         : uint32_t{element<uint8_t>(tensor, offset)});
  }
  switch (tensor.dtype) {
    case DType::kInt8:
      return element<int8_t>(tensor, offset);
    case DType::kInt4:
      return static_cast<float>(static_cast<int>(nibble(tensor, offset) ^ 8u) - 8);
    case DType::kFloat16:
      return format::f16_to_float(element<uint16_t>(tensor, offset));
    case DType::kFloat8E8M0:
      return scale_of_byte(element<uint8_t>(tensor, offset));
    case DType::kUInt64:  // float32 bits in the lower half; the upper half has no meaning
      return std::bit_cast<float>(static_cast<uint32_t>(element<uint64_t>(tensor, offset)));
    default:
      return read_real(tensor, offset);
  }
}

}  // namespace megamoe::reference
