// Aligned and page-backed memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "megamoe/status.h"

namespace megamoe::base {

inline constexpr size_t kCacheLine = 64;

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

/// Anonymous pages, zeroed, released on destruction. `huge` asks for transparent huge pages.
class Pages {
 public:
  Pages() = default;
  /// Pages are touched on first use; an error names the size.
  static Result<Pages> allocate(size_t bytes, bool huge);
  ~Pages();
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        mapped_(std::exchange(other.mapped_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;   ///< whole small pages
  size_t mapped_ = 0;  ///< addresses taken
};

}  // namespace megamoe::base
