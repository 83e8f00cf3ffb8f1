// Elements and rows of the routing operators in the reference.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megamoe/tensor.h"
#include "reference/quantise.h"

namespace megamoe::reference {

/// An element of a float32, float16 or bfloat16 tensor as float, and the way back with one rounding.
float read_float(const TensorView& tensor, int64_t offset);
void write_float(const TensorRef& tensor, int64_t offset, float value);

/// Ids or indices of all slots in row-major order; (F,) or (N, K).
std::vector<int64_t> read_slots(const TensorView& tensor);

/// Slots in stable ascending order of their keys.
std::vector<int64_t> stable_order(const std::vector<int64_t>& keys);

/// Row `from` of a tensor becomes row `to` of a contiguous one of the same type.
void copy_row(const TensorView& x, int64_t from, const TensorRef& out, int64_t to);
/// Row `from` quantised by a rule becomes row `to`, its scales row `to` of `scales` if that is present.
Status quantise_row_to(std::string_view rule, const TensorView& x, int64_t from,
                       const QuantiseArguments& arguments, const TensorRef& out, const TensorRef& scales,
                       int64_t to);

/// All bytes of a contiguous tensor become 0.
void clear(const TensorRef& tensor);
/// `given` is a contiguous tensor like `wanted`, with memory.
Status check_like(const TensorRef& given, const TensorRef& wanted, const std::string& name);

}  // namespace megamoe::reference
