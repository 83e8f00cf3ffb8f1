// A rank's segment as anonymous memory that other processes map through a file descriptor.
#pragma once

#include <cstddef>
#include <utility>

#include "comm/fd.h"
#include "megamoe/status.h"

namespace megamoe::comm {

/// A shared mapping, unmapped on destruction.
class Mapping {
 public:
  Mapping() = default;
  /// Maps all of a sealed descriptor that must hold exactly `bytes`.
  static Result<Mapping> map(const Fd& memory, size_t bytes);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Memory without a name, zeroed, of fixed size, with every page reserved: touching it later cannot fail.
Result<Fd> create_shared_memory(size_t bytes);

}  // namespace megamoe::comm
