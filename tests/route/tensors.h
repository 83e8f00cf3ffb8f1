// Tensors with memory for tests of the routing operators: random contents, any strides, poisoned outputs.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "format/bf16.h"
#include "format/float16.h"
#include "megamoe/isa.h"
#include "megamoe/tensor.h"

namespace megamoe::route {

inline size_t storage_bytes(DType dtype, int64_t elements) {
  return static_cast<size_t>((elements * dtype_bits(dtype) + 7) / 8);
}

/// An input. Wide ones keep every dimension inside a larger one, so that nothing is contiguous.
class Input {
 public:
  Input() = default;
  Input(DType dtype, std::vector<int64_t> shape, bool wide = false) {
    view_.dtype = dtype;
    view_.dims = static_cast<int>(shape.size());
    int64_t step = wide ? 2 : 1;
    for (int i = view_.dims - 1; i >= 0; --i) {
      view_.shape[i] = shape[i];
      view_.strides[i] = step;
      step *= shape[i] + (wide ? 3 : 0);
    }
    bytes_ = std::make_shared<std::vector<std::byte>>(storage_bytes(dtype, step), std::byte{0xff});
    view_.data = bytes_->data();
  }
  operator const TensorView&() const { return view_; }  // NOLINT: stands for its view
  const TensorView& view() const { return view_; }
  std::byte* data() const { return bytes_ ? bytes_->data() : nullptr; }

  int64_t at(int64_t row, int64_t column = 0) const {
    return row * view_.strides[0] + (view_.dims > 1 ? column * view_.strides[1] : 0);
  }
  void set(int64_t row, int64_t column, double value) const {
    const int64_t i = at(row, column);
    std::byte* const bytes = bytes_->data();
    switch (view_.dtype) {
      case DType::kFloat32:
        reinterpret_cast<float*>(bytes)[i] = static_cast<float>(value);
        break;
      case DType::kFloat16:
        reinterpret_cast<uint16_t*>(bytes)[i] = format::f16_from_float(static_cast<float>(value));
        break;
      case DType::kBFloat16:
        reinterpret_cast<uint16_t*>(bytes)[i] = format::bf16_from_float(static_cast<float>(value));
        break;
      case DType::kInt32:
        reinterpret_cast<int32_t*>(bytes)[i] = static_cast<int32_t>(value);
        break;
      case DType::kInt64:
        reinterpret_cast<int64_t*>(bytes)[i] = static_cast<int64_t>(value);
        break;
      default:
        reinterpret_cast<uint8_t*>(bytes)[i] = static_cast<uint8_t>(static_cast<int64_t>(value));
    }
  }
  /// Every element from `make(row, column)`.
  template <class Make>
  Input& fill(Make make) {
    for (int64_t row = 0; row < view_.shape[0]; ++row) {
      for (int64_t column = 0; column < (view_.dims > 1 ? view_.shape[1] : 1); ++column) {
        set(row, column, make(row, column));
      }
    }
    return *this;
  }

 private:
  std::shared_ptr<std::vector<std::byte>> bytes_;
  TensorView view_;
};

/// Float rows with a few large values, zeros of both signs and subnormals among them.
inline Input random_rows(std::mt19937& random, DType dtype, int64_t rows, int64_t columns,
                         bool wide = false) {
  std::normal_distribution<double> normal;
  std::uniform_int_distribution<int> kind(0, 15);
  Input input(dtype, {rows, columns}, wide);
  if (dtype_bits(dtype) <= 8) {
    for (size_t i = 0; i < storage_bytes(dtype, input.at(rows, 0)); ++i) {
      input.data()[i] = static_cast<std::byte>(random());
    }
    return input;
  }
  return input.fill([&](int64_t, int64_t) {
    const int k = kind(random);
    const double x = normal(random);
    return k == 0 ? 0.0 : k == 1 ? -0.0 : k == 2 ? x * 1e-39 : k == 3 ? x * 1000 : x;
  });
}

inline Input random_ids(std::mt19937& random, DType dtype, std::vector<int64_t> shape, int64_t least,
                        int64_t most, bool wide = false) {
  std::uniform_int_distribution<int64_t> id(least, most);
  Input input(dtype, std::move(shape), wide);
  return input.fill([&](int64_t, int64_t) { return static_cast<double>(id(random)); });
}

/// Memory for an output, every byte 0xff: NaN as a float, -1 as an integer. Bytes behind it are watched.
class Output {
 public:
  explicit Output(TensorRef& tensor) : tensor_(&tensor) {
    if (!tensor.present()) return;
    size_ = storage_bytes(tensor.dtype, tensor.elements());
    bytes_.assign(size_ + kGuard, std::byte{0xff});
    tensor.data = bytes_.data();
  }
  const TensorRef& tensor() const { return *tensor_; }
  std::vector<std::byte> bytes() const { return {bytes_.begin(), bytes_.begin() + size_}; }
  bool untouched() const {
    for (std::byte b : bytes_) {
      if (b != std::byte{0xff}) return false;
    }
    return true;
  }
  bool guard_intact() const {
    for (size_t i = size_; i < bytes_.size(); ++i) {
      if (bytes_[i] != std::byte{0xff}) return false;
    }
    return true;
  }
  template <class T>
  std::vector<T> values() const {
    std::vector<T> result(size_ / sizeof(T));
    if (size_ != 0) std::memcpy(result.data(), bytes_.data(), size_);
    return result;
  }

 private:
  static constexpr size_t kGuard = 64;
  TensorRef* tensor_;
  size_t size_ = 0;
  std::vector<std::byte> bytes_;
};

/// Same bytes; any NaN equals any NaN.
inline void expect_same(const Output& got, const Output& want, const std::string& name) {
  EXPECT_TRUE(got.guard_intact()) << name;
  const auto a = got.bytes(), b = want.bytes();
  ASSERT_EQ(a.size(), b.size()) << name;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    FAIL() << name << " differs at byte " << i << " of " << a.size() << " of type "
           << dtype_name(got.tensor().dtype) << " " << got.tensor().shape_text() << ": "
           << static_cast<int>(a[i]) << ", expected " << static_cast<int>(b[i]);
  }
}

inline std::vector<Isa> runnable_levels() {
  std::vector<Isa> levels;
  for (const IsaInfo& info : isa_levels()) {
    if (info.runnable) levels.push_back(info.isa);
  }
  return levels;
}

}  // namespace megamoe::route
