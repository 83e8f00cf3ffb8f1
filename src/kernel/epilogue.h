// What happens to a tile of accumulators: scales, roundings, activation, store; over any float vector type V.
#pragma once

#include "kernel/contract.h"

namespace megamoe::kernel {

/// What turns the accumulators of V::kLanes columns into values, the same for all rows.
template <class V, EpilogueKind kKind>
class Columns {
 public:
  template <class Epilogue>
  Columns(const Epilogue& e, int column)
      : c_(static_cast<const std::byte*>(e.c) + 4 * column),
        scale_(row_of(kKind == EpilogueKind::kScaledInt32 ? e.column_scales : nullptr, column)),
        shift_(row_of(kKind == EpilogueKind::kScaledInt32 ? e.column_shift : nullptr, column)),
        bias_(row_of(e.column_bias, column)),
        shifted_(e.column_shift != nullptr),
        biased_(e.column_bias != nullptr) {}

  /// Scaled by column, shifted, scaled by row, plus the bias; bf16 sums have no scales and are rounded to
  /// bf16.
  [[gnu::always_inline]] V rounded(int row, V row_scale, V bias_factor) const {
    const V value = values(row, row_scale, bias_factor);
    return kKind == EpilogueKind::kBf16 ? V::round_to_bf16(value) : value;
  }
  /// The same where the next step rounds to bf16 anyway.
  [[gnu::always_inline]] V values(int row, V row_scale, V bias_factor) const {
    V value = V::set(0.0f);
    const std::byte* const c = c_ + int64_t{row} * kPanelColumns * 4;
    if constexpr (kKind == EpilogueKind::kScaledInt32) {
      value = V::load_converted(reinterpret_cast<const int32_t*>(c)) * scale_;
      if (shifted_) value = value + shift_;
    } else {
      value = V::load(reinterpret_cast<const float*>(c));
    }
    if constexpr (kKind != EpilogueKind::kBf16) {
      value = value * row_scale;
    } else {
      value = value + V::set(0.0f);  // -0, of which sums that underflow lose the sign one way and not another
    }
    if (biased_) value = value + bias_ * bias_factor;
    return value;
  }

 private:
  static V row_of(const float* row, int column) {
    return row == nullptr ? V::set(0.0f) : V::load(row + column);
  }

  const std::byte* c_;
  V scale_, shift_, bias_;
  bool shifted_, biased_;
};

/// Entry of a row, or 1 where there are none.
template <class V>
V factor_of(const float* factors, int row) {
  return V::set(factors == nullptr ? 1.0f : factors[row]);
}

/// Stores the first `outputs - column` lanes, at most all of them.
template <class V, class Output>
void store_outputs(Output* out, V value, int column, int outputs) {
  if (outputs - column >= V::kLanes) {
    V::store(out + column, value);
  } else {
    V::store(out + column, value, outputs - column);
  }
}

template <class V, EpilogueKind kKind, template <class> class Activation, bool kGated>
void linear1(const Linear1Epilogue& e) {
  const Activation<V> activation(*e.params);
  const V one = V::set(1.0f);
  for (int column = 0; column < e.outputs; column += V::kLanes) {
    const Columns<V, kKind> gate(e, column), up(e, kGated ? column + kGatedColumns : column);
    auto* out = static_cast<std::byte*>(e.out);
    for (int row = 0; row < e.rows; ++row, out += e.out_row_bytes) {
      const V row_scale = factor_of<V>(e.row_scales, row);
      V value = gate.rounded(row, row_scale, one);
      if constexpr (kGated) {
        value = activation(value, up.rounded(row, row_scale, one));
      } else {
        value = activation(value);
      }
      if (e.row_weights != nullptr) value = value * V::set(e.row_weights[row]);
      if constexpr (kKind == EpilogueKind::kBf16) {
        store_outputs(reinterpret_cast<uint16_t*>(out), value, column, e.outputs);
      } else {
        store_outputs(reinterpret_cast<float*>(out), value, column, e.outputs);
      }
    }
  }
}

template <class V, EpilogueKind kKind>
void linear1_values(const Linear1Epilogue& e) {
  for (int column = 0; column < kPanelColumns; column += V::kLanes) {
    const Columns<V, kKind> columns(e, column);
    for (int row = 0; row < e.rows; ++row) {
      auto* const out = reinterpret_cast<float*>(static_cast<std::byte*>(e.out) + row * e.out_row_bytes);
      V::store(out + column, columns.rounded(row, factor_of<V>(e.row_scales, row), V::set(1.0f)));
    }
  }
}

/// Two vectors of columns of all rows, to places with room for both.
template <class V, EpilogueKind kKind, bool kStream>
void linear2_pairs(const Linear2Epilogue& e) {
  for (int column = 0; column < kPanelColumns; column += 2 * V::kLanes) {
    const Columns<V, kKind> first(e, column), second(e, column + V::kLanes);
    for (int row = 0; row < e.rows; ++row) {
      const V row_scale = factor_of<V>(e.row_scales, row), bias_factor = factor_of<V>(e.bias_factors, row);
      const V values[2] = {first.values(row, row_scale, bias_factor),
                           second.values(row, row_scale, bias_factor)};
      if constexpr (kStream) {
        V::stream(e.out[row] + column, values);
      } else {
        V::store(e.out[row] + column, values);
      }
    }
  }
}

template <class V, EpilogueKind kKind>
void linear2(const Linear2Epilogue& e) {
  if (e.outputs == kPanelColumns) {
    return e.stream ? linear2_pairs<V, kKind, true>(e) : linear2_pairs<V, kKind, false>(e);
  }
  for (int column = 0; column < e.outputs; column += V::kLanes) {
    const Columns<V, kKind> columns(e, column);
    for (int row = 0; row < e.rows; ++row) {
      const V value = columns.values(row, factor_of<V>(e.row_scales, row), factor_of<V>(e.bias_factors, row));
      store_outputs(e.out[row], value, column, e.outputs);
    }
  }
}

}  // namespace megamoe::kernel
