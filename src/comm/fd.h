// Owner of a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace megamoe::comm {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int value) : value_(value) {}
  Fd(Fd&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return value_; }
  bool valid() const { return value_ >= 0; }
  void reset() {
    if (value_ >= 0) ::close(value_);
    value_ = -1;
  }

 private:
  int value_ = -1;
};

}  // namespace megamoe::comm
