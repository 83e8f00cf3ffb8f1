// Texts of the caller as messages show them, and texts cut to the room they have.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace megamoe::base {

/// Bytes of the longest prefix of `text` that fits into `most` bytes and does not cut a UTF-8 character.
inline size_t fitting_bytes(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return most;
}

/// Cut where it is long, so that what was expected stays in a message whose room is limited.
inline std::string shortened(std::string_view text) {
  constexpr size_t kLongest = 80;
  if (text.size() <= kLongest) return std::string(text);
  return std::string(text.substr(0, fitting_bytes(text, kLongest - 3))) + "...";
}

inline std::string quoted(std::string_view text) {
  return '"' + shortened(text) + '"';
}

}  // namespace megamoe::base
