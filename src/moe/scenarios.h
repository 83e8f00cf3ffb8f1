// The scenario table: which codec, which family, which roundings.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernel/contract.h"
#include "megamoe/status.h"
#include "megamoe/tensor.h"
#include "quant/rules.h"

namespace megamoe::moe {

/// How a row of values becomes codes for a matrix product, and back into the pool of another rank.
struct Codec {
  const char* name;
  std::optional<quant::QuantRule> rule;  ///< nothing where a bfloat16 row is its own code

  bool encodes() const { return rule.has_value(); }
  DType codes() const { return encodes() ? quant::rule_info(*rule).codes : DType::kBFloat16; }
  /// Bytes of a row of n codes, and of its scales.
  int64_t row_bytes(int64_t n) const { return (n * dtype_bits(codes()) + 7) / 8; }
  int64_t scale_bytes(int64_t n) const { return encodes() ? quant::rule_info(*rule).scale_bytes(n) : 0; }
  /// Row of n values of type `input` to codes and scales; only where it encodes.
  void encode(const kernel::RowOps& ops, const void* row, DType input, int64_t n, void* codes,
              void* scales) const {
    ops.quantise[static_cast<int>(*rule)]({row, input, n, nullptr, 0, 0, codes, scales});
  }
};

struct Scenario {
  const char* name;
  int dispatch_quant_mode;
  DType dispatch_quant_out_dtype;
  DType weight;
  bool channel_scales;
  const Codec* token_codec;
  kernel::Family family1;
  kernel::EpilogueKind epilogue1;
  const Codec* requantise_codec;
  kernel::Family family2;
  kernel::EpilogueKind epilogue2;

  /// Type of an activated row before requantisation.
  DType activated() const {
    return epilogue1 == kernel::EpilogueKind::kBf16 ? DType::kBFloat16 : DType::kFloat32;
  }
};

std::span<const Scenario> scenarios();

/// The scenario of a buffer's quantisation settings and the weights' type. Errors name dispatch_quant_mode,
/// dispatch_quant_out_dtype or weight1.
Result<const Scenario*> find_scenario(int dispatch_quant_mode, DType dispatch_quant_out_dtype, DType weight);

/// The token codec of a buffer's quantisation settings.
Result<const Codec*> find_token_codec(int dispatch_quant_mode, DType dispatch_quant_out_dtype);

/// The scenario of a name, or an error that lists the names.
Result<const Scenario*> scenario_from_name(std::string_view name);

}  // namespace megamoe::moe
