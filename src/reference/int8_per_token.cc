// s = fl32(max|x| / 127), q = RNE(fl32(x / s)).
#include "reference/int8_per_token.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

#include "base/fp_env.h"
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
  for (int64_t i = 0; i < n; ++i) {
    // A scale that rounded to a subnormal can leave a quotient past 127; a scale of 0 means that nothing is
    // left.
    const int8_t code = scale == 0 ? int8_t{0} : format::int8_from_float(x[i] / scale);
    codes[i] = std::max(code, int8_t{-127});
  }
  return scale;
}

namespace {

Status quantise_rows(const TensorView& x, const TensorRef& codes, const TensorRef& scale) {
  MEGAMOE_RETURN_IF_ERROR(check_type(x, "x", {DType::kBFloat16, DType::kFloat32}));
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

}  // namespace

Status int8_per_token(const TensorView& x, const TensorRef& codes, const TensorRef& scale) {
  const base::DefaultFpEnv fp_env;
  try {
    return quantise_rows(x, codes, scale);
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, "int8_per_token has no memory for one row");
  }
}

}  // namespace megamoe::reference
