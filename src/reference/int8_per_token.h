// Quantisation of one row to int8 with one scale.
#pragma once

#include <cstdint>

namespace megamoe::reference {

/// Writes the codes of `n` values and returns their scale. NaN elements have code 0 and do not count for the
/// maximum.
float quantise_int8_row(const float* x, int64_t n, int8_t* codes);

}  // namespace megamoe::reference
