// The table of formats and the figures of each.
#include "format/table.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>

#include "format/bf16.h"
#include "format/float16.h"
#include "format/float4_e2m1.h"
#include "format/float8_e4m3.h"
#include "format/float8_e5m2.h"
#include "format/float8_e8m0.h"
#include "format/hifloat8.h"
#include "format/int4.h"
#include "format/int8.h"

namespace megamoe::format {
namespace {

uint32_t encode_16(float value, bool saturate, uint32_t infinity, uint16_t (*encode)(float)) {
  const uint32_t code = encode(value);
  if (!saturate || (code & 0x7fff) < infinity) return code;
  return std::isnan(value) ? 0 : (code & 0x8000) | (infinity - 1);
}

constexpr char kEven[] = "nearest, ties to even";
constexpr char kAway[] = "nearest, ties to the larger magnitude";

constexpr FormatInfo kFormats[] = {
    {DType::kFloat32, "s e(8) m(23), bias 127", kEven,
     [](uint32_t code) { return std::bit_cast<float>(code); },
     [](float value, bool) { return std::bit_cast<uint32_t>(value); }},
    {DType::kFloat16, "s eeeee m(10), bias 15", kEven,
     [](uint32_t code) { return f16_to_float(static_cast<uint16_t>(code)); },
     [](float value, bool saturate) { return encode_16(value, saturate, 0x7c00, f16_from_float); }},
    {DType::kBFloat16, "s e(8) m(7), bias 127", kEven,
     [](uint32_t code) { return bf16_to_float(static_cast<uint16_t>(code)); },
     [](float value, bool saturate) { return encode_16(value, saturate, 0x7f80, bf16_from_float); }},
    {DType::kInt8, "two's complement", kEven,
     [](uint32_t code) { return static_cast<float>(static_cast<int8_t>(code)); },
     [](float value, bool) { return uint32_t{static_cast<uint8_t>(int8_from_float(value))}; }},
    {DType::kInt4, "two's complement", kEven,
     [](uint32_t code) { return static_cast<float>(int4_to_int(static_cast<uint8_t>(code))); },
     [](float value, bool) { return uint32_t{int4_from_float(value)}; }},
    {DType::kFloat8E4M3, "s eeee mmm, bias 7", kEven,
     [](uint32_t code) { return e4m3_to_float(static_cast<uint8_t>(code)); },
     [](float value, bool saturate) { return uint32_t{e4m3_from_float(value, saturate)}; }},
    {DType::kFloat8E5M2, "s eeeee mm, bias 15", kEven,
     [](uint32_t code) { return e5m2_to_float(static_cast<uint8_t>(code)); },
     [](float value, bool saturate) { return uint32_t{e5m2_from_float(value, saturate)}; }},
    {DType::kFloat4E2M1, "s ee m, bias 1", kEven,
     [](uint32_t code) { return e2m1_to_float(static_cast<uint8_t>(code)); },
     [](float value, bool) { return uint32_t{e2m1_from_float(value)}; }},
    {DType::kFloat8E8M0, "eeeeeeee, bias 127", kEven,
     [](uint32_t code) { return e8m0_to_float(static_cast<uint8_t>(code)); },
     [](float value, bool) { return uint32_t{e8m0_from_float(value)}; }},
    {DType::kHiFloat8, "s, prefix, 0 to 4 exponent bits, 0 to 3 mantissa bits", kAway,
     [](uint32_t code) { return hif8_to_float(static_cast<uint8_t>(code)); },
     [](float value, bool saturate) { return uint32_t{hif8_from_float(value, saturate)}; }},
};

/// Codes for which `holds`, as runs: "7d-7f, fd-ff".
std::string code_runs(int bits, const std::function<bool(uint32_t)>& holds) {
  const int digits = bits / 4;
  const uint32_t count = 1u << bits;
  std::string text;
  for (uint32_t first = 0; first < count; ++first) {
    if (!holds(first)) continue;
    uint32_t last = first;
    while (last + 1 < count && holds(last + 1)) ++last;
    char run[32];
    std::snprintf(run, sizeof(run), first == last ? "%s%0*x" : "%s%0*x-%0*x", text.empty() ? "" : ", ",
                  digits, first, digits, last);
    text += run;
    first = last;
  }
  return text;
}

}  // namespace

std::span<const FormatInfo> formats() {
  return kFormats;
}

const FormatInfo* find_format(DType dtype) {
  for (const FormatInfo& format : kFormats) {
    if (format.dtype == dtype) return &format;
  }
  return nullptr;
}

FormatFigures figures(const FormatInfo& format) {
  FormatFigures result;
  if (format.dtype == DType::kFloat32) {  // too many codes to read
    using Limits = std::numeric_limits<float>;
    return {Limits::max(),
            127,
            Limits::denorm_min(),
            "7f800000, ff800000",
            "7f800001-7fffffff, ff800001-ffffffff",
            "00000000, 80000000"};
  }
  const int bits = dtype_bits(format.dtype);
  result.smallest = std::numeric_limits<double>::infinity();
  for (uint32_t code = 0; code < 1u << bits; ++code) {
    const double value = format.decode(code);
    if (std::isfinite(value)) result.largest = std::fmax(result.largest, value);
    if (value > 0) result.smallest = std::fmin(result.smallest, value);
  }
  result.emax = std::ilogb(result.largest);
  result.infinities = code_runs(bits, [&](uint32_t code) { return std::isinf(format.decode(code)); });
  result.nans = code_runs(bits, [&](uint32_t code) { return std::isnan(format.decode(code)); });
  result.zeros = code_runs(bits, [&](uint32_t code) { return format.decode(code) == 0; });
  return result;
}

}  // namespace megamoe::format
