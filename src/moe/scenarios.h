// The scenario table: which codec, which family, which roundings.
#pragma once

#include <cstdint>
#include <span>

#include "kernel/contract.h"
#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::moe {

/// How a row of values becomes codes for a matrix product, and back into the pool of another rank.
struct Codec {
  const char* name;
  DType codes;          ///< type of one code
  int64_t scale_bytes;  ///< scales of one row
  /// Row of n values to codes and scale; null where the row is its own code. One per type of the row.
  void (*encode_bf16)(const kernel::RowOps& ops, const void* row, int64_t n, void* codes, float* scale);
  void (*encode_f32)(const kernel::RowOps& ops, const void* row, int64_t n, void* codes, float* scale);

  int64_t row_bytes(int64_t n) const { return (n * dtype_bits(codes) + 7) / 8; }
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
