// The scenario table: which codec, which family, which roundings.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernel/contract.h"
#include "megamoe/status.h"
#include "megamoe/tensor.h"
#include "pack/weight_types.h"
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
  /// True where a row of type `input` is already what encode() would make of it.
  bool keeps(DType input) const { return !encodes() && input == DType::kBFloat16; }
  /// Row of n values of type `input` to codes and scales. Without a rule it takes float16, which becomes
  /// bfloat16.
  void encode(const kernel::RowOps& ops, const void* row, DType input, int64_t n, void* codes,
              void* scales) const {
    if (!encodes()) return ops.half_to_bf16(row, n, static_cast<uint16_t*>(codes));
    ops.quantise[static_cast<int>(*rule)]({row, input, n, nullptr, 0, 0, codes, scales});
  }

  /// True where the matrix product takes something else than the codes themselves.
  bool decodes() const { return encodes() && quant::rule_info(*rule).group != 0; }
  /// True where scales are powers of two for groups of 32.
  bool is_mx() const { return encodes() && quant::rule_info(*rule).scales == DType::kFloat8E8M0; }
  /// True where a product with `group` k per group, 0 for one over the whole of K, takes a factor for each
  /// group beside what decode() gives.
  bool has_factors(int64_t group) const { return decodes() && (!is_mx() || group != 0); }
  /// What a product of `family` takes for a row of n codes; `values` is scratch of n. MX as bfloat16 without
  /// factors: the values, exact but for subnormals, which lose bits. Groups as bfloat16: the codes, and their
  /// scales as factors. MX E2M1 as s8: 2 x code, and factors of 2^(byte - 128).
  void decode(const kernel::RowOps& ops, kernel::Family family, const void* codes, const void* scales,
              int64_t n, float* values, void* out, float* factors = nullptr) const;
};

struct Scenario {
  const char* name;
  int dispatch_quant_mode;
  DType dispatch_quant_out_dtype;
  bool default_out;  ///< dispatch_quant_out_dtype may be left undefined
  DType weight;
  pack::ScaleKind weight_scales;
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
Result<const Scenario*> find_scenario(int dispatch_quant_mode, DType dispatch_quant_out_dtype, DType weight,
                                      pack::ScaleKind scales);

/// The token codec of a buffer's quantisation settings.
Result<const Codec*> find_token_codec(int dispatch_quant_mode, DType dispatch_quant_out_dtype);

/// The scenario of shared experts: by the type of their token codes and their weights. Errors name
/// shared_expert_quant_out_dtype or shared_weight1.
Result<const Scenario*> find_shared_scenario(DType codes, DType weight, pack::ScaleKind scales);

/// Tokens come as codes with scales: dispatch_quant_mode 0 with the code type of a quantising mode.
bool passes_codes_through(int dispatch_quant_mode, DType dispatch_quant_out_dtype);

/// The codec of combine rows: null for 0 (bfloat16 rows), MX for 3 and 4; an error names combine_quant_mode.
Result<const Codec*> find_combine_codec(int combine_quant_mode);

/// The scenario of a name, or an error that lists the names.
Result<const Scenario*> scenario_from_name(std::string_view name);

}  // namespace megamoe::moe
