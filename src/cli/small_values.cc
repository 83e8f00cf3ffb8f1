// The table of what can be subnormal in a layer.
#include "cli/small_values.h"

#include "format/bf16.h"

namespace megamoe::cli {
namespace {

// Tokens are about 1 and weights about 1 / sqrt(k). Scales are a value of the row or group over the largest
// code, so that they are subnormal before the values are; MX scales end at 2^-127.
constexpr SmallValues kSmallValues[] = {
    {"subnormal tokens", 0x1p-130f, 1, 1, 1},
    {"subnormal token scales", 0x1p-126f, 1, 1, 1},
    {"subnormal weights", 1, 0x1p-125f, 0x1p-125f, 1},
    {"subnormal weight scales", 1, 0x1p-121f, 0x1p-121f, 1},
    {"subnormal activations", 1, 0x1p-64f, 1, 1},  // products of gate and up
    {"subnormal router weights", 1, 1, 1, 0x1p-127f},
};

}  // namespace

std::span<const SmallValues> small_values() {
  return kSmallValues;
}

void multiply(std::vector<uint16_t>& values, float factor) {
  for (uint16_t& value : values) value = format::bf16_from_float(format::bf16_to_float(value) * factor);
}

}  // namespace megamoe::cli
