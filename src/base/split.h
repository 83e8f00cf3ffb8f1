// A range cut into parts as evenly as whole elements allow.
#pragma once

#include <cstdint>

namespace megamoe::base {

struct EvenSplit {
  int64_t total;
  int64_t parts;  ///< at least 1 where a part is asked for

  /// First element of a part; it ends where the next part starts.
  int64_t begin(int64_t part) const { return total * part / parts; }
  int64_t size(int64_t part) const { return begin(part + 1) - begin(part); }
  /// The part that holds an element.
  int64_t part_of(int64_t element) const {
    int64_t part = element * parts / total;
    while (begin(part + 1) <= element) ++part;
    return part;
  }
};

}  // namespace megamoe::base
