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

/// e^x for x <= 0 within 2 units in the last place; 0 from -87 down.
inline float exp_of_negative(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
  // Choices by mask: a branch would keep loops from becoming vectors.
  const uint32_t in_range = 0u - static_cast<uint32_t>(x > -87.0f);
  const float bounded = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & in_range);
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
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p * power) & in_range);
}

inline void sigmoid(const float* logits, int64_t n, float* scores) {
  for (int64_t i = 0; i < n; ++i) {
    const float e = exp_of_negative(-std::fabs(logits[i]));
    const uint32_t negative = 0u - static_cast<uint32_t>(logits[i] < 0);
    const float above = 1.0f / (1.0f + e), below = e / (1.0f + e);
    scores[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(below) & negative) |
                                     (std::bit_cast<uint32_t>(above) & ~negative));
  }
}

/// Probabilities. Logits of +infinity share everything among themselves; a row of nothing but -infinity is
/// uniform.
inline void softmax(const float* logits, int64_t n, float* scores) {
  // Several running values each for the maximum and the sum, or the loops would wait for one another.
  constexpr int64_t kParts = 8;
  const int64_t whole = n / kParts * kParts;
  float largest[kParts];
  for (float& x : largest) x = kNoScore;
  for (int64_t i = 0; i < whole; i += kParts) {
    for (int64_t j = 0; j < kParts; ++j) largest[j] = logits[i + j] > largest[j] ? logits[i + j] : largest[j];
  }
  float most = kNoScore;
  for (float x : largest) most = std::max(most, x);
  for (int64_t i = whole; i < n; ++i) most = std::max(most, logits[i]);
  if (std::abs(most) == std::numeric_limits<float>::infinity()) {
    for (int64_t i = 0; i < n; ++i) scores[i] = logits[i] == most ? 1.0f : 0.0f;
  } else {
    for (int64_t i = 0; i < n; ++i) scores[i] = exp_of_negative(logits[i] - most);
  }
  float sums[kParts] = {};
  for (int64_t i = 0; i < whole; i += kParts) {
    for (int64_t j = 0; j < kParts; ++j) sums[j] += scores[i + j];
  }
  for (int64_t i = whole; i < n; ++i) sums[0] += scores[i];
  float total = 0;
  for (float sum : sums) total += sum;
  for (int64_t e = 0; e < n; ++e) scores[e] /= total;
}

}  // namespace megamoe::route
