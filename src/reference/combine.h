// Expert rows on their way home, and their sum.
#pragma once

#include <vector>

#include "reference/problem.h"

namespace megamoe::reference {

/// An expert row as its home rank receives it: through the codes of combine_quant_mode, if any.
std::vector<float> returned_row(const Problem& problem, const std::vector<float>& row);

/// One token at home. `rows` are the rows of its slots, empty where one is not used; `experts` the experts of
/// its slots; `shared` the rows of its shared experts. Returns the sums before their rounding to y.
std::vector<float> combine_token(const Problem& problem, const std::vector<const std::vector<float>*>& rows,
                                 const int64_t* experts, const std::vector<float>& weights,
                                 const std::vector<std::vector<float>>& shared);

}  // namespace megamoe::reference
