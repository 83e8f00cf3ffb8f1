// The scenarios: which types tokens, weights and activated rows have.
#pragma once

#include <string>
#include <vector>

#include "megamoe/mega_moe.h"
#include "reference/coded_row.h"

namespace megamoe::reference {

/// How weights are scaled: not at all, by column, by E8M0 bytes for every 32 k, by groups of K with zero
/// points, or in blocks of 128 x 128.
enum class WeightScaling { kNone, kPerColumn, kMx, kGroups, kBlocks };

/// The weights of a layer, as far as they choose a scenario.
struct WeightForm {
  DType codes;
  WeightScaling scaling;
};
/// The form of checked types: `scale_group` tells groups and blocks from the scales a type has by itself.
WeightForm weight_form(DType codes, int64_t scale_group);

/// One row of the table. Every rounding follows from the types and their scales.
struct Scenario {
  const char* name;
  DType token;      ///< codes that Linear1 reads
  DType weight;     ///< codes of both weights
  DType activated;  ///< codes that Linear2 reads
  int quant_mode;   ///< dispatch_quant_mode that makes token codes of bfloat16 rows
  Scaling scaling;  ///< of tokens and of activated rows
  WeightScaling weight_scaling;

  /// Values between the stages are bfloat16, else float32.
  bool rounds_between() const { return scaling != Scaling::kPerRow; }
};

/// Mode that takes x as codes with their scales.
inline constexpr int kCodedTokens = 0;

/// The type whose codes a weight tensor holds: int32 words hold eight int4 each.
inline DType weight_codes(DType dtype) {
  return dtype == DType::kInt32 ? DType::kInt4 : dtype;
}

/// Types in which weights may come, in order; of one type of codes if given.
std::vector<DType> weight_types(DType codes = DType::kUndefined);

/// The scenario of the routed experts. Errors name dispatch_quant_mode or dispatch_quant_out_dtype.
Result<const Scenario*> routed_scenario(const BufferConfig& config, const WeightForm& weight);
/// The scenario of shared experts of a rank; `routed` gives the type of tokens where none is named.
Result<const Scenario*> shared_scenario(const Scenario& routed, bool coded_x, DType quant_out_dtype,
                                        const WeightForm& weight);

}  // namespace megamoe::reference
