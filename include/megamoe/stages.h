// Intermediate values of one call, for finding the first stage in which two implementations differ.
#pragma once

#include <cstdint>
#include <vector>

namespace megamoe {

/// Values of a set of rows after every stage, row-major, rows of one expert together.
struct StageRows {
  std::vector<int64_t> home;              ///< (rows, 3): rank, token, slot
  std::vector<float> token_codes;         ///< (rows, H) codes as numbers
  std::vector<float> token_scales;        ///< (rows,), 1 where the scenario has none; MX (rows, ceil(H / 32))
  std::vector<float> linear1;             ///< (rows, N1) as the activation sees it: gate columns, then up
  std::vector<float> activated;           ///< (rows, I)
  std::vector<float> requantised;         ///< (rows, I) codes as numbers
  std::vector<float> requantised_scales;  ///< (rows,), or MX (rows, ceil(I / 32))
  std::vector<float> linear2;             ///< (rows, H) bf16 values
};

/// Rows of the routed experts of one rank: experts ascending, inside an expert by source rank, then token,
/// then slot.
struct Stages : StageRows {
  std::vector<float> returned;  ///< (rows, H) values at home: those of linear2, or of their codes
  StageRows shared;  ///< rows of the shared experts, by expert, then token; `slot` is the shared expert
};

}  // namespace megamoe
