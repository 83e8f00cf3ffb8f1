// A function for each number of rows of a tile.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

namespace megamoe::kernel {

/// make.operator()<kRows>() for 1 .. kMaxRows rows; functions of `kRows` rows stand at kRows - 1.
template <int kMaxRows, class Make>
consteval auto functions_by_rows(Make make) {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array{make.template operator()<static_cast<int>(kIndex) + 1>()...};
  }
  (std::make_index_sequence<kMaxRows>{});
}

}  // namespace megamoe::kernel
