// int8 per token: one float scale per row, s = fl32(max|x| / 127), q = RNE(fl32(x / s)), over any float
// vector type V. NaN stays out of the maximum and becomes code 0. An infinite element makes s infinite:
// finite elements become 0, and so does inf / inf. A row whose maximum is so small that s rounds to 0 is a
// zero row: s = 0, q = 0. Codes are limited to
// +-127, which only matters where s is subnormal and therefore coarse.
#pragma once

#include <cstdint>

namespace megamoe::quant {

template <class V, class Input>
float max_magnitude(const Input* x, int64_t n) {
  // Four maxima hide the latency of one; NaN as the first operand gives way to the second.
  V most[4] = {V::set(0), V::set(0), V::set(0), V::set(0)};
  int64_t i = 0;
  for (; i + 4 * V::kLanes <= n; i += 4 * V::kLanes) {
    for (int j = 0; j < 4; ++j) most[j] = V::max(V::abs(V::load(x + i + j * V::kLanes)), most[j]);
  }
  for (; i + V::kLanes <= n; i += V::kLanes) most[0] = V::max(V::abs(V::load(x + i)), most[0]);
  if (i < n) most[0] = V::max(V::abs(V::load(x + i, static_cast<int>(n - i))), most[0]);
  return V::max_lanes(V::max(V::max(most[0], most[1]), V::max(most[2], most[3])));
}

template <class V>
V int8_code(V x, V scale) {
  const V limit = V::set(127.0f);
  return V::max(V::negate(limit), V::min(limit, V::zero_if_nan(x / scale)));
}

template <class V, class Input>
void int8_per_token(const Input* x, int64_t n, int8_t* codes, float* scale) {
  *scale = max_magnitude<V>(x, n) / 127.0f;
  if (*scale == 0.0f) {
    for (int64_t i = 0; i < n; ++i) codes[i] = 0;
    return;
  }
  const V s = V::set(*scale);
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(codes + i, int8_code(V::load(x + i), s));
  if (i < n) {
    const int count = static_cast<int>(n - i);
    V::store(codes + i, int8_code(V::load(x + i, count), s), count);
  }
}

}  // namespace megamoe::quant
