// Casts of whole tensors between the formats of real numbers, and the int4 view of int32 words.
#include <array>
#include <cstdint>

#include "base/fp_env.h"
#include "format/check.h"
#include "format/int4.h"
#include "format/packed.h"
#include "format/table.h"
#include "megamoe/quantise.h"

namespace megamoe {
namespace {

std::vector<DType> real_types() {
  std::vector<DType> types;
  for (const format::FormatInfo& info : format::formats()) types.push_back(info.dtype);
  return types;
}

template <class Void>
int64_t offset_of(const BasicTensor<Void>& tensor, const std::array<int64_t, kMaxDims>& index) {
  int64_t offset = 0;
  for (int i = 0; i < tensor.dims; ++i) offset += index[static_cast<size_t>(i)] * tensor.strides[i];
  return offset;
}

}  // namespace

Status cast(const TensorView& x, const TensorRef& y, bool saturate) {
  const std::vector<DType> types = real_types();
  MEGAMOE_RETURN_IF_ERROR(format::check_type(x, "x", types));
  MEGAMOE_RETURN_IF_ERROR(format::check_plain(x, "x"));
  MEGAMOE_RETURN_IF_ERROR(format::check_type(view(y), "y", types));
  MEGAMOE_RETURN_IF_ERROR(format::check_same_shape(view(y), "y", x));
  MEGAMOE_RETURN_IF_ERROR(format::check_plain(view(y), "y"));

  const base::DefaultFpEnv fp_env;
  const auto decode = format::find_format(x.dtype)->decode;
  const auto encode = format::find_format(y.dtype)->encode;
  const int x_bits = dtype_bits(x.dtype), y_bits = dtype_bits(y.dtype);
  std::array<int64_t, kMaxDims> index{};
  for (int64_t left = x.elements(); left > 0; --left) {
    const uint32_t code = format::read_code(x.data, x_bits, offset_of(x, index));
    format::write_code(y.data, y_bits, offset_of(y, index), encode(decode(code), saturate));
    for (int i = x.dims - 1; i >= 0 && ++index[static_cast<size_t>(i)] == x.shape[i]; --i) {
      index[static_cast<size_t>(i)] = 0;
    }
  }
  return Status::ok();
}

Result<TensorView> int4_view(const TensorView& words) {
  MEGAMOE_RETURN_IF_ERROR(format::check_type(words, "words", {DType::kInt32}));
  MEGAMOE_RETURN_IF_ERROR(format::check_extents(words, "words"));
  const int last = words.dims - 1;
  if (last < 0 || (words.layout == Layout::kNd && words.shape[last] > 1 && words.strides[last] != 1)) {
    return Status(Code::kInvalidArgument,
                  "words has shape " + words.shape_text() +
                      ": expected a last dimension without gaps between its elements");
  }
  TensorView nibbles = words;
  nibbles.dtype = DType::kInt4;
  for (int i = 0; i < last; ++i) nibbles.strides[i] *= format::kInt4PerInt32;
  nibbles.strides[last] = 1;
  nibbles.shape[last] *= format::kInt4PerInt32;
  return nibbles;
}

Result<TensorView> int32_view(const TensorView& nibbles) {
  MEGAMOE_RETURN_IF_ERROR(format::check_type(nibbles, "nibbles", {DType::kInt4}));
  MEGAMOE_RETURN_IF_ERROR(format::check_extents(nibbles, "nibbles"));
  const int last = nibbles.dims - 1;
  const bool plain = nibbles.layout == Layout::kNd;
  bool whole = last >= 0 && nibbles.shape[last] % format::kInt4PerInt32 == 0 &&
               reinterpret_cast<uintptr_t>(nibbles.data) % alignof(int32_t) == 0;
  if (whole && plain && nibbles.shape[last] > 0) whole = nibbles.strides[last] == 1;
  for (int i = 0; whole && plain && i < last; ++i) {
    whole = nibbles.shape[i] <= 1 || nibbles.strides[i] % format::kInt4PerInt32 == 0;
  }
  if (!whole) {
    return Status(Code::kInvalidArgument, "nibbles has shape " + nibbles.shape_text() +
                                              ": expected rows of whole, aligned words of 8 elements");
  }
  TensorView words = nibbles;
  words.dtype = DType::kInt32;
  for (int i = 0; i < last; ++i) words.strides[i] /= format::kInt4PerInt32;
  words.shape[last] /= format::kInt4PerInt32;
  return words;
}

}  // namespace megamoe
