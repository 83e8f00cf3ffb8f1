// Texts of the caller as messages show them.
#pragma once

#include <string>
#include <string_view>

namespace megamoe::base {

/// Cut where it is long, so that what was expected stays in a message whose room is limited.
inline std::string shortened(std::string_view text) {
  constexpr size_t kLongest = 80;
  if (text.size() <= kLongest) return std::string(text);
  size_t end = kLongest - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;  // not inside a UTF-8 character
  return std::string(text.substr(0, end)) + "...";
}

inline std::string quoted(std::string_view text) {
  return '"' + shortened(text) + '"';
}

}  // namespace megamoe::base
