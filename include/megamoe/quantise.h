// Number formats and quantisation rules on tensors: cast, quantise, dequantise, layouts.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megamoe/export.h"
#include "megamoe/isa.h"
#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe {

/// A quantisation rule, as docs/formats.md lists them.
struct QuantRuleInfo {
  const char* name;
  DType codes;
  DType scales;   ///< kUndefined where the rule writes none
  int64_t group;  ///< columns that share a scale; 0 = the whole row
  std::vector<DType> inputs;
  bool takes_smooth, takes_scale, takes_offset;
};
MEGAMOE_API std::vector<QuantRuleInfo> quant_rules();

/// What some rules take besides the rows.
struct QuantArguments {
  TensorView smooth;            ///< (H,) or (1, H) float32, optional with int8_per_token and int4_dynamic
  std::optional<float> scale;   ///< required by int8_static and hif8_per_tensor
  std::optional<float> offset;  ///< required by int8_static
  std::optional<Isa> isa;  ///< level of the kernels; the result is the same on all; absent = default_isa()
};

/// Rows of x (T, H) to codes (T, H) and scales. Scales are (T, groups), (T, padded groups), the same as (T,
/// padded / 2, 2), or (T,) where the whole row has one; padding columns get 0. Absent for rules without
/// scales. x has any strides, codes and scales any row stride.
MEGAMOE_API Status quantise(std::string_view rule, const TensorView& x, const TensorRef& codes,
                            const TensorRef& scales, const QuantArguments& arguments = {});

/// Codes (T, H) and scales of a rule to float32 y (T, H), all with any strides; 4-bit rows without gaps.
/// Smooth scales are not divided out.
MEGAMOE_API Status dequantise(std::string_view rule, const TensorView& codes, const TensorView& scales,
                              const TensorRef& y, const QuantArguments& arguments = {});

/// Every element to the type of y, through float32. Saturating casts turn what is past the largest number
/// into the largest and NaN into +0; others into infinity (E4M3: NaN) and NaN. To float32 every value stays
/// as it is. x and y have the same shape and any strides.
MEGAMOE_API Status cast(const TensorView& x, const TensorRef& y, bool saturate = true);

/// int32 words seen as eight int4 elements each, the first in bits 3 to 0: the last dimension grows by 8. An
/// error for other types or words with gaps between them.
MEGAMOE_API Result<TensorView> int4_view(const TensorView& words);
/// The way back: int4 elements seen as int32 words; the last dimension shrinks by 8. An error for other
/// types, a last dimension that is no multiple of 8, or elements that do not fill whole, aligned words.
MEGAMOE_API Result<TensorView> int32_view(const TensorView& nibbles);

/// Shape of the memory that holds one matrix of `rows` x `columns` in a fractal layout, in elements:
/// (ceil(columns / C0), ceil(rows / 16), 16, C0). An error for layouts that the type does not have.
MEGAMOE_API Result<std::array<int64_t, 4>> fractal_storage_shape(DType dtype, Layout layout, int64_t rows,
                                                                 int64_t columns);

/// The elements of x in the layout of y; padding of y becomes zero. Same type and shape; dimensions before
/// the last two are separate matrices, one after the other in fractal layouts.
MEGAMOE_API Status convert_layout(const TensorView& x, const TensorRef& y);

}  // namespace megamoe
