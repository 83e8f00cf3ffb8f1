// Ranks of one run: threads of this process, or processes forked from it; and the memory they report through.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "megamoe/group.h"
#include "megamoe/status.h"

namespace megamoe::cli {

/// Zeroed memory that this process and the ranks it forks share.
class SharedMemory {
 public:
  SharedMemory() = default;
  static Result<SharedMemory> make(size_t bytes);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// An array in such memory.
template <class T>
class SharedArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  SharedArray() = default;
  static Result<SharedArray> make(int64_t count) {
    auto memory = SharedMemory::make(static_cast<size_t>(count) * sizeof(T));
    if (!memory) return memory.status();
    SharedArray array;
    array.memory_ = std::move(*memory);
    array.count_ = count;
    return array;
  }
  T* data() const { return static_cast<T*>(memory_.data()); }
  int64_t size() const { return count_; }
  T& operator[](int64_t i) const { return data()[i]; }

 private:
  SharedMemory memory_;
  int64_t count_ = 0;
};

/// Runs body on every rank of a new group and waits for all. "local": one thread each. "shm": one process
/// each, forked from this one, which must have no other thread. Returns the failure closest to the cause,
/// named by rank. `tick` is called from this thread about ten times a second.
Status run_on_ranks(const std::string& transport, int ranks, const std::function<Status(const Group&)>& body,
                    const std::function<void()>& tick = {});

}  // namespace megamoe::cli
