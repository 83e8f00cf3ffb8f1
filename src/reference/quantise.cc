// Every quantisation rule for one row, as the documents state it.
#include "reference/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "base/fp_env.h"
#include "format/int8.h"
#include "format/table.h"
#include "reference/int8_per_token.h"

namespace megamoe::reference {
namespace {

using format::FormatInfo;

constexpr int64_t kMxGroup = 32, kFp8Group = 128;
constexpr float kLeastAmax = 1e-4f;

/// Largest code value and its exponent.
struct Target {
  DType dtype;
  float largest;
  int emax;
};
constexpr Target kE5M2{DType::kFloat8E5M2, 57344.0f, 15};
constexpr Target kE4M3{DType::kFloat8E4M3, 448.0f, 8};
constexpr Target kE2M1{DType::kFloat4E2M1, 6.0f, 2};
constexpr Target kHif8{DType::kHiFloat8, 32768.0f, 15};

enum class Family {
  kInt8Static,
  kInt8PerToken,
  kInt4,
  kMxFloor,
  kMxFloorSubnormal,
  kMxRoundUp,
  kMxRoundUpAmax,
  kGroup,
  kGroupAmax,
  kBlock,
  kHif8Cast,
  kHif8PerTensor,
  kHif8PerToken
};

struct Rule {
  const char* name;
  Family family;
  Target target;
};
constexpr Rule kRules[] = {
    {"int8_static", Family::kInt8Static, {}},
    {"int8_per_token", Family::kInt8PerToken, {}},
    {"int4_dynamic", Family::kInt4, {}},
    {"mx_floor_e5m2", Family::kMxFloor, kE5M2},
    {"mx_floor_e4m3", Family::kMxFloor, kE4M3},
    {"mx_floor_e2m1", Family::kMxFloor, kE2M1},
    {"mx_floor_subnormal_e2m1", Family::kMxFloorSubnormal, kE2M1},
    {"mx_round_up_e5m2", Family::kMxRoundUp, kE5M2},
    {"mx_round_up_e4m3", Family::kMxRoundUp, kE4M3},
    {"mx_round_up_e2m1", Family::kMxRoundUp, kE2M1},
    {"mx_round_up_amax_e5m2", Family::kMxRoundUpAmax, kE5M2},
    {"mx_round_up_amax_e4m3", Family::kMxRoundUpAmax, kE4M3},
    {"fp8_group128_e5m2", Family::kGroup, kE5M2},
    {"fp8_group128_e4m3", Family::kGroup, kE4M3},
    {"fp8_group128_amax_e5m2", Family::kGroupAmax, kE5M2},
    {"fp8_group128_amax_e4m3", Family::kGroupAmax, kE4M3},
    {"fp8_block128_e5m2", Family::kBlock, kE5M2},
    {"fp8_block128_e4m3", Family::kBlock, kE4M3},
    {"hif8_cast", Family::kHif8Cast, kHif8},
    {"hif8_per_tensor", Family::kHif8PerTensor, kHif8},
    {"hif8_per_token", Family::kHif8PerToken, kHif8},
};

const Rule* find_rule(std::string_view name) {
  for (const Rule& rule : kRules) {
    if (name == rule.name) return &rule;
  }
  return nullptr;
}

uint8_t encode(DType type, float value) {
  return static_cast<uint8_t>(format::find_format(type)->encode(value, /*saturate=*/true));
}

/// Largest magnitude of numbers; NaN does not count.
float largest_of(const std::vector<float>& x, int64_t begin, int64_t end) {
  float largest = 0;
  for (int64_t i = begin; i < end; ++i) {
    const float magnitude = std::fabs(x[static_cast<size_t>(i)]);
    if (magnitude > largest) largest = magnitude;  // fmax would let a signalling NaN through
  }
  return largest;
}

bool all_finite(const std::vector<float>& x, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    if (!std::isfinite(x[static_cast<size_t>(i)])) return false;
  }
  return true;
}

float truncated_to_bf16(float value) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000u);
}

/// Exponent of the smallest power of two p with value <= largest code * p.
int round_up_exponent(float value, const Target& target) {
  const int exponent = std::ilogb(value) - target.emax;
  return exponent + (value > std::ldexp(target.largest, exponent) ? 1 : 0);
}

void mx(const Rule& rule, const std::vector<float>& x, QuantisedRow& out) {
  const auto n = static_cast<int64_t>(x.size());
  out.scale_type = DType::kFloat8E8M0;
  for (int64_t begin = 0; begin < n; begin += kMxGroup) {
    const int64_t end = std::min(n, begin + kMxGroup);
    int byte = 0;
    bool zero = false;  // codes are zeros with the signs of the values
    const bool finite = all_finite(x, begin, end);
    if (finite) {
      float largest = truncated_to_bf16(largest_of(x, begin, end));
      if (rule.family == Family::kMxRoundUpAmax)
        largest = std::max(largest, 0x1.a4p-14f);  // 1e-4 in bfloat16
      const bool subnormal = largest < 0x1p-126f;
      if (rule.family == Family::kMxFloor || rule.family == Family::kMxFloorSubnormal) {
        byte = subnormal ? 0 : std::max(0, std::ilogb(largest) + 127 - rule.target.emax);
        zero = subnormal && rule.family == Family::kMxFloor;
      } else if (largest == 0) {
        zero = true;
      } else {
        const int field = subnormal ? 0 : std::ilogb(largest) + 127;
        byte = field <= rule.target.emax ? 1 : round_up_exponent(largest, rule.target) + 127;
      }
    }
    out.scale_bytes.push_back(finite ? static_cast<uint8_t>(byte) : 0xff);
    for (int64_t i = begin; i < end; ++i) {
      const float value = x[static_cast<size_t>(i)];
      const float scaled = !finite ? 0.0f : zero ? std::copysign(0.0f, value) : std::ldexp(value, 127 - byte);
      out.codes.push_back(encode(rule.target.dtype, scaled));
    }
  }
  if (out.scale_bytes.size() % 2 != 0) out.scale_bytes.push_back(0);
}

void fp8_groups(const Rule& rule, const std::vector<float>& x, QuantisedRow& out) {
  const auto n = static_cast<int64_t>(x.size());
  out.scale_type = DType::kFloat32;
  for (int64_t begin = 0; begin < n; begin += kFp8Group) {
    const int64_t end = std::min(n, begin + kFp8Group);
    if (!all_finite(x, begin, end)) {
      out.scales.push_back(std::numeric_limits<float>::quiet_NaN());
      out.codes.insert(out.codes.end(), static_cast<size_t>(end - begin), 0);
      continue;
    }
    float largest = largest_of(x, begin, end);
    if (rule.family == Family::kGroupAmax) largest = std::max(largest, kLeastAmax);
    float scale = largest / rule.target.largest;
    if (rule.family != Family::kBlock) {
      const int exponent =
          largest < 0x1p-126f ? -126 : std::max(-126, round_up_exponent(largest, rule.target));
      scale = std::ldexp(1.0f, exponent);
    }
    out.scales.push_back(scale);
    for (int64_t i = begin; i < end; ++i) {
      const float value = x[static_cast<size_t>(i)];
      out.codes.push_back(scale == 0 ? 0 : encode(rule.target.dtype, value / scale));
    }
  }
  if (rule.family == Family::kBlock && out.scales.size() % 2 != 0) out.scales.push_back(0.0f);
}

void int4_dynamic(const std::vector<float>& x, QuantisedRow& out) {
  const float largest = largest_of(x, 0, static_cast<int64_t>(x.size()));
  const float scale = largest * (1.0f / 7.0f);
  const float factor = scale == 0 ? 0 : 7.0f / largest;
  out.scale_type = DType::kFloat32;
  out.scales = {scale};
  for (float value : x) {
    const float product = value * factor;
    const float rounded = std::isnan(product) ? 0 : std::round(std::clamp(product, -7.0f, 7.0f));
    out.codes.push_back(static_cast<uint8_t>(static_cast<int>(rounded) & 15));
  }
}

void hif8(const Rule& rule, const std::vector<float>& x, float tensor_scale, QuantisedRow& out) {
  float scale = 0;
  if (rule.family == Family::kHif8PerToken) {
    scale = largest_of(x, 0, static_cast<int64_t>(x.size())) * 0x1p-15f;
    out.scale_type = DType::kFloat32;
    out.scales = {scale};
  }
  for (float value : x) {
    if (rule.family == Family::kHif8PerTensor) value = value * tensor_scale;
    if (rule.family == Family::kHif8PerToken) value = scale == 0 ? 0 : value / scale;
    out.codes.push_back(encode(DType::kHiFloat8, value));
  }
}

Status unknown(std::string_view name) {
  return Status(Code::kInvalidArgument, "rule = \"" + std::string(name) + "\": expected the name of a rule");
}

}  // namespace

Result<QuantisedRow> quantise_row(std::string_view name, const std::vector<float>& values,
                                  const QuantiseArguments& arguments) {
  const Rule* rule = find_rule(name);
  if (rule == nullptr) return unknown(name);
  const base::DefaultFpEnv fp_env;
  std::vector<float> x = values;
  for (size_t i = 0; i < arguments.smooth.size(); ++i) x[i] *= arguments.smooth[i];
  QuantisedRow out;
  switch (rule->family) {
    case Family::kInt8Static:
      for (float value : x)
        out.codes.push_back(
            static_cast<uint8_t>(format::int8_from_float(value * arguments.scale + arguments.offset)));
      break;
    case Family::kInt8PerToken: {
      std::vector<int8_t> codes(x.size());
      out.scale_type = DType::kFloat32;
      out.scales = {quantise_int8_row(x.data(), static_cast<int64_t>(x.size()), codes.data())};
      out.codes.assign(codes.begin(), codes.end());
      break;
    }
    case Family::kInt4:
      int4_dynamic(x, out);
      break;
    case Family::kMxFloor:
    case Family::kMxFloorSubnormal:
    case Family::kMxRoundUp:
    case Family::kMxRoundUpAmax:
      mx(*rule, x, out);
      break;
    case Family::kGroup:
    case Family::kGroupAmax:
    case Family::kBlock:
      fp8_groups(*rule, x, out);
      break;
    case Family::kHif8Cast:
    case Family::kHif8PerTensor:
    case Family::kHif8PerToken:
      hif8(*rule, x, arguments.scale, out);
      break;
  }
  return out;
}

Result<std::vector<float>> dequantise_row(std::string_view name, const QuantisedRow& row,
                                          const QuantiseArguments& arguments) {
  const Rule* rule = find_rule(name);
  if (rule == nullptr) return unknown(name);
  const base::DefaultFpEnv fp_env;
  std::vector<float> values;
  for (size_t i = 0; i < row.codes.size(); ++i) {
    const uint8_t code = row.codes[i];
    const bool is_int = rule->target.largest == 0;
    const DType type = !is_int                         ? rule->target.dtype
                       : rule->family == Family::kInt4 ? DType::kInt4
                                                       : DType::kInt8;
    float value = format::find_format(type)->decode(code);
    switch (rule->family) {
      case Family::kInt8Static:
        value = (value - arguments.offset) / arguments.scale;
        break;
      case Family::kHif8PerTensor:
        value = value / arguments.scale;
        break;
      case Family::kHif8Cast:
        break;
      case Family::kMxFloor:
      case Family::kMxFloorSubnormal:
      case Family::kMxRoundUp:
      case Family::kMxRoundUpAmax:
        value *= format::find_format(DType::kFloat8E8M0)->decode(row.scale_bytes[i / kMxGroup]);
        break;
      case Family::kGroup:
      case Family::kGroupAmax:
      case Family::kBlock:
        value *= row.scales[i / kFp8Group];
        break;
      default:
        value *= row.scales[0];
    }
    values.push_back(value);
  }
  return values;
}

}  // namespace megamoe::reference
