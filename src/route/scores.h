// Expert scores from router logits, in float: plain loops that compilers turn into vectors, the same bits on
// every level.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace megamoe::route {

inline constexpr float kNoScore = -std::numeric_limits<float>::infinity();

/// e^x for x <= 0 within 2 units in the last place; 0 below -87.
inline float exp_of_negative(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
  const float bounded = x > -87.0f ? x : -87.0f;
  const float shifted = bounded * 1.44269504f + kRound;
  const float n = shifted - kRound;
  // ln 2 in two parts; n times the first is exact.
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  // Taylor series: with |r| <= ln(2) / 2 the first term left out is below 2^-27.
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127u) << 23);
  return x < -87.0f ? 0.0f : p * power;
}

inline void sigmoid(const float* logits, int64_t n, float* scores) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = logits[i];
    const float e = exp_of_negative(x < 0 ? x : -x);
    scores[i] = (x < 0 ? e : 1.0f) / (1.0f + e);
  }
}

/// Probabilities. Logits of +infinity share everything among themselves; a row of nothing but -infinity is
/// uniform.
inline void softmax(const float* logits, int64_t n, float* scores) {
  float most = kNoScore;
  for (int64_t i = 0; i < n; ++i) most = logits[i] > most ? logits[i] : most;
  if (std::abs(most) == std::numeric_limits<float>::infinity()) {
    for (int64_t i = 0; i < n; ++i) scores[i] = logits[i] == most ? 1.0f : 0.0f;
  } else {
    for (int64_t i = 0; i < n; ++i) scores[i] = exp_of_negative(logits[i] - most);
  }
  constexpr int kSums = 8;
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int j = 0; j < kSums; ++j) sums[j] += scores[i + j];
  }
  for (; i < n; ++i) sums[0] += scores[i];
  float total = 0;
  for (float sum : sums) total += sum;
  for (int64_t e = 0; e < n; ++e) scores[e] /= total;
}

}  // namespace megamoe::route
