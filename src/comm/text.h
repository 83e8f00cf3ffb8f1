// Texts cut to the fixed room they have in shared memory.
#pragma once

#include <cstddef>
#include <string_view>

namespace megamoe::comm {

/// Bytes of the longest prefix of `text` that fits into `most` bytes and does not cut a UTF-8 character.
inline size_t fitting_bytes(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return most;
}

}  // namespace megamoe::comm
