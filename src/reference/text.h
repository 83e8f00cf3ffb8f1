// Numbers and values as they stand in error messages.
#pragma once

#include <cstdio>
#include <string>

namespace megamoe::reference {

inline std::string text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%g", value);
  return buffer;
}

}  // namespace megamoe::reference
