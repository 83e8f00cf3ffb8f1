// s = fl32(max|x| / 127), q = RNE(fl32(x / s)).
#include "reference/int8_per_token.h"

#include <cmath>
#include <vector>

#include "format/int8.h"
#include "megamoe/reference.h"
#include "reference/element.h"

namespace megamoe::reference {

float quantise_int8_row(const float* x, int64_t n, int8_t* codes) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > largest) largest = std::fabs(x[i]);
  }
  const float scale = largest / 127.0f;
  for (int64_t i = 0; i < n; ++i) codes[i] = scale == 0 ? int8_t{0} : format::int8_from_float(x[i] / scale);
  return scale;
}

Status int8_per_token(const TensorView& x, const TensorRef& codes, const TensorRef& scale) {
  if (x.dtype != DType::kBFloat16 && x.dtype != DType::kFloat32) {
    return Status(Code::kInvalidType,
                  std::string("x has type ") + dtype_name(x.dtype) + ": expected bfloat16 or float32");
  }
  MEGAMOE_RETURN_IF_ERROR(check_tensor(x, "x", {-1, -1}));
  const int64_t rows = x.shape[0];
  const int64_t cols = x.shape[1];
  MEGAMOE_RETURN_IF_ERROR(check_type(view(codes), "codes", {DType::kInt8}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor(view(codes), "codes", {rows, cols}));
  MEGAMOE_RETURN_IF_ERROR(check_type(view(scale), "scale", {DType::kFloat32}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor(view(scale), "scale", {rows}));

  std::vector<float> row(static_cast<size_t>(cols));
  std::vector<int8_t> row_codes(static_cast<size_t>(cols));
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t h = 0; h < cols; ++h) row[h] = read_real(x, offset(x, t, h));
    element<float>(scale, offset(scale, t)) = quantise_int8_row(row.data(), cols, row_codes.data());
    for (int64_t h = 0; h < cols; ++h) element<int8_t>(codes, offset(codes, t, h)) = row_codes[h];
  }
  return Status::ok();
}

}  // namespace megamoe::reference
