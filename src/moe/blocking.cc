// The table of block sizes and its defaults from the sizes of the caches.
#include "moe/blocking.h"

#include <algorithm>

namespace megamoe::moe {
namespace {

// A third of the first-level cache in steps of 4 KiB: the rows and the sums of a tile need the rest.
int64_t third_of(int64_t l1d_bytes) {
  constexpr int64_t kUsual = 48 << 10;
  const int64_t cache = l1d_bytes > 0 ? l1d_bytes : kUsual;
  return std::clamp<int64_t>(cache / 3 / 4096 * 4096, 8192, 32768);
}

std::vector<BlockSize> make_table() {
#define MEGAMOE_UNPACK(...) \
  { __VA_ARGS__ }
#define MEGAMOE_BLOCK_SIZE(name, fallback, least, most, multiple, candidates, what) \
  {#name, &Blocking::name, least, most, multiple, MEGAMOE_UNPACK candidates, what},
  return {
#include "moe/blocking.inc"
  };
#undef MEGAMOE_BLOCK_SIZE
#undef MEGAMOE_UNPACK
}

}  // namespace

std::string BlockSize::allowed() const {
  const std::string range = "in [" + std::to_string(least) + ", " + std::to_string(most) + "]";
  return (multiple == 1 ? "a value " : "a multiple of " + std::to_string(multiple) + " ") + range;
}

std::span<const BlockSize> block_sizes() {
  static const std::vector<BlockSize> table = make_table();
  return table;
}

const BlockSize* find_block_size(const std::string& name) {
  for (const BlockSize& size : block_sizes()) {
    if (name == size.name) return &size;
  }
  return nullptr;
}

Blocking default_blocking(const base::Topology& caches) {
  Blocking blocking;
#define MEGAMOE_BLOCK_SIZE(name, fallback, least, most, multiple, candidates, what) blocking.name = fallback;
#include "moe/blocking.inc"
#undef MEGAMOE_BLOCK_SIZE
  return blocking;
}

std::string blocking_text(const Blocking& blocking) {
  std::string text;
  for (const BlockSize& size : block_sizes()) {
    if (!text.empty()) text += ", ";
    text += std::string(size.name) + " " + std::to_string(blocking.*size.value);
  }
  return text;
}

}  // namespace megamoe::moe
