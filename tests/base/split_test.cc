// Even parts of a range.
#include <gtest/gtest.h>

#include "base/split.h"

namespace megamoe::base {
namespace {

TEST(EvenSplit, PartsCoverTheRangeAndDifferByOne) {
  for (int64_t total = 0; total <= 40; ++total) {
    for (int64_t parts = 1; parts <= 9; ++parts) {
      const EvenSplit split{total, parts};
      EXPECT_EQ(split.begin(0), 0);
      EXPECT_EQ(split.begin(parts), total);
      for (int64_t part = 0; part < parts; ++part) {
        EXPECT_GE(split.size(part), total / parts);
        EXPECT_LE(split.size(part), (total + parts - 1) / parts);
      }
    }
  }
}

TEST(EvenSplit, EveryElementIsFoundInItsPart) {
  for (int64_t total = 1; total <= 40; ++total) {
    for (int64_t parts = 1; parts <= 9; ++parts) {
      const EvenSplit split{total, parts};
      for (int64_t element = 0; element < total; ++element) {
        const int64_t part = split.part_of(element);
        EXPECT_LE(split.begin(part), element);
        EXPECT_LT(element, split.begin(part + 1));
      }
    }
  }
}

}  // namespace
}  // namespace megamoe::base
