// Quantisation of a row by the rule of its type.
#include "reference/coded_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "format/bf16.h"
#include "reference/int8_per_token.h"
#include "reference/number.h"

namespace megamoe::reference {
namespace {

CodedRow encode_int8(const std::vector<float>& row) {
  std::vector<int8_t> codes(row.size());
  const float scale = quantise_int8_row(row.data(), static_cast<int64_t>(row.size()), codes.data());
  return {std::vector<float>(codes.begin(), codes.end()), {scale}};
}

// One group of values of 16 bits by the floor rule: only the exponent field of the largest one counts.
float encode_group(const SmallFloat& format, const float* x, int64_t n, float* codes) {
  constexpr int kInfinityOrNaN = 255;
  int exponent = 0;
  for (int64_t i = 0; i < n; ++i) {
    exponent = std::max(exponent, static_cast<int>(std::bit_cast<uint32_t>(x[i]) >> 23 & 0xff));
  }
  if (exponent == kInfinityOrNaN) {
    std::fill_n(codes, n, 0.0f);
    return std::numeric_limits<float>::quiet_NaN();
  }
  const int byte = std::max(exponent - format.largest_exponent, 0);
  // A group of zeros and subnormals is multiplied by 0, which keeps the signs.
  const double multiplier = exponent == 0 ? 0.0 : std::ldexp(1.0, 127 - byte);
  for (int64_t i = 0; i < n; ++i) codes[i] = round_saturating(format, double{x[i]} * multiplier);
  return std::ldexp(1.0f, byte - 127);
}

CodedRow encode_mx(const SmallFloat& format, const std::vector<float>& row) {
  const int64_t n = static_cast<int64_t>(row.size());
  CodedRow coded;
  coded.group = kMxGroup;
  coded.codes.resize(row.size());
  for (int64_t i = 0; i < n; i += kMxGroup) {
    coded.scales.push_back(
        encode_group(format, row.data() + i, std::min(kMxGroup, n - i), coded.codes.data() + i));
  }
  return coded;
}

// Groups of 128: the scale takes the largest magnitude to the largest code.
CodedRow encode_group128(const SmallFloat& format, const std::vector<float>& row) {
  const int64_t n = static_cast<int64_t>(row.size());
  CodedRow coded;
  coded.group = group_of(Scaling::kGroup128);
  for (int64_t begin = 0; begin < n; begin += coded.group) {
    const int64_t end = std::min(n, begin + coded.group);
    float largest = 0;
    bool finite = true;
    for (int64_t i = begin; i < end; ++i) {
      finite = finite && std::isfinite(row[i]);
      largest = std::max(largest, std::fabs(row[i]));
    }
    const float scale = finite ? largest / format.largest : std::numeric_limits<float>::quiet_NaN();
    coded.scales.push_back(scale);
    for (int64_t i = begin; i < end; ++i) {
      coded.codes.push_back(scale > 0 ? round_saturating(format, row[i] / scale) : 0.0f);
    }
  }
  return coded;
}

}  // namespace

int64_t group_of(Scaling scaling) {
  return scaling == Scaling::kMx ? kMxGroup : scaling == Scaling::kGroup128 ? 128 : 0;
}

Scaling scaling_of(DType codes) {
  return small_float(codes) != nullptr ? Scaling::kMx
         : codes == DType::kInt8       ? Scaling::kPerRow
                                       : Scaling::kNone;
}

CodedRow encode(DType type, const std::vector<float>& row) {
  return encode(scaling_of(type), type, row);
}

CodedRow encode(Scaling scaling, DType type, const std::vector<float>& row) {
  switch (scaling) {
    case Scaling::kMx:
      return encode_mx(*small_float(type), row);
    case Scaling::kGroup128:
      return encode_group128(*small_float(type), row);
    case Scaling::kPerRow:
      return encode_int8(row);
    case Scaling::kNone:
      break;
  }
  CodedRow coded{row, {1.0f}};
  for (float& v : coded.codes) v = format::bf16_to_float(format::bf16_from_float(v));
  return coded;
}

}  // namespace megamoe::reference
