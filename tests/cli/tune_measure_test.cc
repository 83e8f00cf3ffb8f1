// What pairs of times say of a candidate: better only above the noise, and nowhere worse.
#include "cli/tune_measure.h"

#include <gtest/gtest.h>

#include <cmath>

namespace megamoe::cli {
namespace {

// Pairs whose defaults take 1 ms and whose candidate takes `ratio` of it, give or take `spread`.
Pairs pairs_of(double ratio, double spread, int count = 40) {
  Pairs pairs;
  for (int i = 0; i < count; ++i) {
    pairs.fallback.push_back(1e-3);
    pairs.candidate.push_back(1e-3 * ratio * (1 + spread * (i % 5 - 2) / 2));
  }
  return pairs;
}

TEST(Gain, IsTheMedianOfThePairs) {
  const Pairs pairs = pairs_of(0.8, 0.1);
  EXPECT_NEAR(pairs.ratio(), 0.8, 1e-9);
  EXPECT_NEAR(pairs.median(), 0.8e-3, 1e-9);
  EXPECT_NEAR(pairs.fallback_median(), 1e-3, 1e-9);
  EXPECT_GT(pairs.noise(), pairs_of(0.8, 0.01).noise());
}

TEST(Gain, WinsAboveTheNoiseOnly) {
  const Measured quiet = {pairs_of(1.0, 0.02)};
  EXPECT_TRUE(gain_of({pairs_of(0.9, 0.02)}, quiet).wins());
  EXPECT_FALSE(gain_of({pairs_of(1.1, 0.02)}, quiet).wins());
  EXPECT_FALSE(gain_of({pairs_of(0.99, 0.2)}, quiet).wins());                   // its own noise
  EXPECT_FALSE(gain_of({pairs_of(0.9, 0.02)}, {pairs_of(1, 0.5)}).wins());      // that of the defaults
  EXPECT_FALSE(gain_of({pairs_of(0.9, 0.02)}, {pairs_of(0.85, 0.02)}).wins());  // they drift as far
}

TEST(Gain, FewPairsProveLess) {
  const Measured quiet = {pairs_of(1, 0.001)};
  EXPECT_TRUE(gain_of({pairs_of(0.9, 0.001, 5)}, quiet).wins());
  for (const int count : {1, 2, 4}) {  // however alike they are
    EXPECT_FALSE(gain_of({pairs_of(0.5, 0, count)}, quiet).wins()) << count;
    EXPECT_FALSE(gain_of({pairs_of(0.5, 0)}, {pairs_of(1, 0, count)}).wins()) << count;
  }
  // Five pairs that spread as many do know their median less well than the root of their number says.
  const double ratio = pairs_of(1, 0.1, 5).noise() / pairs_of(1, 0.1, 500).noise();
  EXPECT_GT(ratio, 1.9 * std::sqrt(500.0 / 5));
}

TEST(Noise, IsATextThatSaysWhatIsKnown) {
  EXPECT_EQ(noise_text(std::log(1.05)), "5 %");
  EXPECT_EQ(noise_text(std::log(1.99)), "99 %");
  EXPECT_EQ(noise_text(std::log(150.0)), ">100 %");
  EXPECT_EQ(noise_text(pairs_of(1, 0.1, 4).noise()), "-");
}

TEST(Noise, AboveABoundNothingIsJudged) {
  EXPECT_FALSE(too_noisy({pairs_of(1, 0.02)}));
  EXPECT_TRUE(too_noisy({pairs_of(1, 0.9, 5)}));
  EXPECT_TRUE(too_noisy({pairs_of(1.5, 0.01)}));   // the second call of a pair is never like the first
  EXPECT_FALSE(too_noisy({pairs_of(1, 0.9, 4)}));  // too few pairs are another reason
}

TEST(Gain, DoesNotPayForOneBatchWithAnother) {
  const Measured control = {pairs_of(1, 0.02), pairs_of(1, 0.02)};
  EXPECT_TRUE(gain_of({pairs_of(0.8, 0.02), pairs_of(1.0, 0.02)}, control).wins());
  const Gain mixed = gain_of({pairs_of(0.8, 0.02), pairs_of(1.1, 0.02)}, control);
  EXPECT_GT(mixed.value, mixed.noise);
  EXPECT_TRUE(mixed.worse_somewhere);
  EXPECT_FALSE(mixed.wins());
}

}  // namespace
}  // namespace megamoe::cli
