// Values at the lower end of the formats: a layer and its tokens, shrunk until something is subnormal.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megamoe::cli {

/// Powers of two that the values of a random layer are multiplied by, and what is subnormal then.
struct SmallValues {
  const char* what;
  float tokens = 1, weight1 = 1, weight2 = 1, router_weights = 1;
  bool changes_weights() const { return weight1 != 1 || weight2 != 1; }
};
std::span<const SmallValues> small_values();

/// bfloat16 values times a power of two.
void multiply(std::vector<uint16_t>& values, float factor);

}  // namespace megamoe::cli
