// Random weights in every layout the packer reads, each element known by (expert, k, n).
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "megamoe/mega_moe.h"

namespace megamoe::test {

enum class Order { kRows, kRowsPadded, kColumns, kColumnsPadded, kEverySecond, kReversed, kNz, kNzLastK };
inline constexpr Order kOrders[] = {
    Order::kRows,        Order::kRowsPadded, Order::kColumns, Order::kColumnsPadded,
    Order::kEverySecond, Order::kReversed,   Order::kNz,      Order::kNzLastK};

/// Weights of a layer and the memory behind them. Everything around the elements holds poison.
class TestWeights {
 public:
  TestWeights(DType dtype, int64_t experts, int64_t k, int64_t n, Order order, bool stacked, uint32_t seed)
      : dtype_(dtype), experts_(experts), k_(k), n_(n), size_(dtype_bits(dtype) / 8) {
    std::mt19937 random(seed);
    values_.resize(static_cast<size_t>(experts * k * n));
    for (int32_t& v : values_) v = static_cast<int32_t>(random());
    linear.k_last = order == Order::kColumns || order == Order::kColumnsPadded || order == Order::kNzLastK;
    memory_.resize(stacked ? 1 : static_cast<size_t>(experts));
    for (size_t t = 0; t < memory_.size(); ++t) {
      linear.weight.push_back(fill(memory_[t], stacked ? 0 : static_cast<int64_t>(t), stacked, order));
    }
  }

  /// Bits of an element, zero-extended.
  uint32_t bits(int64_t e, int64_t k, int64_t n) const {
    const auto v = static_cast<uint32_t>(values_[static_cast<size_t>((e * k_ + k) * n_ + n)]);
    return size_ == 2 ? v & 0xffff : v & 0xff;
  }

  LinearWeights linear;

 private:
  static constexpr int64_t kMargin = 64;

  TensorView fill(std::vector<uint8_t>& memory, int64_t expert, bool stacked, Order order) {
    const int64_t rows = linear.k_last ? n_ : k_, columns = linear.k_last ? k_ : n_;
    const int64_t count = stacked ? experts_ : 1;
    const bool nz = order == Order::kNz || order == Order::kNzLastK;
    const int64_t c0 = 32 / size_, padded_rows = (rows + 15) / 16 * 16;
    int64_t row_step = columns, column_step = 1, matrix = rows * columns, first = 0;
    if (order == Order::kRowsPadded || order == Order::kColumnsPadded)
      row_step += 7, matrix = rows * row_step + 3;
    if (order == Order::kEverySecond) row_step = 2 * columns + 1, column_step = 2, matrix = rows * row_step;
    if (order == Order::kReversed) column_step = -1, row_step = columns, first = columns - 1;
    if (nz) matrix = (columns + c0 - 1) / c0 * c0 * padded_rows;
    memory.assign(static_cast<size_t>((count * matrix + 2 * kMargin) * size_), 0xa5);
    uint8_t* const base = memory.data() + (kMargin + first) * size_;
    for (int64_t e = 0; e < count; ++e) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t offset = nz ? c / c0 * (padded_rows * c0) + r / 16 * (16 * c0) + r % 16 * c0 + c % c0
                                    : r * row_step + c * column_step;
          const uint32_t value = linear.k_last ? bits(expert + e, c, r) : bits(expert + e, r, c);
          std::memcpy(base + (e * matrix + offset) * size_, &value, static_cast<size_t>(size_));
        }
      }
    }
    TensorView view;
    view.data = base;
    view.dtype = dtype_;
    view.layout = nz ? Layout::kFractalNz : Layout::kNd;
    view.dims = stacked ? 3 : 2;
    if (stacked) view.shape[0] = experts_, view.strides[0] = matrix;
    view.shape[view.dims - 2] = rows, view.strides[view.dims - 2] = row_step;
    view.shape[view.dims - 1] = columns, view.strides[view.dims - 1] = column_step;
    return view;
  }

  DType dtype_;
  int64_t experts_, k_, n_, size_;
  std::vector<int32_t> values_;
  std::vector<std::vector<uint8_t>> memory_;
};

}  // namespace megamoe::test
