// What happens to a tile of accumulators: scales, roundings, activation, store; over any float vector type V.
#pragma once

#include "kernel/contract.h"

namespace megamoe::kernel {

/// What turns the accumulators of one row into values.
template <class V>
struct RowScaling {
  const float* column_scales;
  const float* column_shift;
  const float* column_bias;
  V row_scale;
  V bias_factor;
};

/// Accumulators of one row as values, from `column` on: scaled by column, shifted, scaled by row, plus the
/// bias; bf16 sums have no scales and are rounded to bf16.
template <class V, EpilogueKind kKind>
V tile_values(const void* c, int row, int column, const RowScaling<V>& s) {
  const int64_t at = int64_t{row} * kPanelColumns + column;
  V value = V::set(0.0f);
  if constexpr (kKind == EpilogueKind::kBf16) {
    value = V::load(static_cast<const float*>(c) + at);
  } else if constexpr (kKind == EpilogueKind::kScaledFloat) {
    value = V::load(static_cast<const float*>(c) + at) * s.row_scale;
  } else {
    value = V::load_converted(static_cast<const int32_t*>(c) + at) * V::load(s.column_scales + column);
    if (s.column_shift != nullptr) value = value + V::load(s.column_shift + column);
    value = value * s.row_scale;
  }
  if (s.column_bias != nullptr) value = value + V::load(s.column_bias + column) * s.bias_factor;
  if constexpr (kKind == EpilogueKind::kBf16) value = V::round_to_bf16(value);
  return value;
}

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
  for (int row = 0; row < e.rows; ++row) {
    const RowScaling<V> scaling{e.column_scales, e.column_shift, e.column_bias,
                                factor_of<V>(e.row_scales, row), V::set(1.0f)};
    std::byte* out = static_cast<std::byte*>(e.out) + row * e.out_row_bytes;
    for (int column = 0; column < e.outputs; column += V::kLanes) {
      V value = tile_values<V, kKind>(e.c, row, column, scaling);
      if constexpr (kGated) {
        value = activation(value, tile_values<V, kKind>(e.c, row, column + kGatedColumns, scaling));
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
  for (int row = 0; row < e.rows; ++row) {
    const RowScaling<V> scaling{e.column_scales, e.column_shift, e.column_bias,
                                factor_of<V>(e.row_scales, row), V::set(1.0f)};
    auto* const out = reinterpret_cast<float*>(static_cast<std::byte*>(e.out) + row * e.out_row_bytes);
    for (int column = 0; column < kPanelColumns; column += V::kLanes) {
      V::store(out + column, tile_values<V, kKind>(e.c, row, column, scaling));
    }
  }
}

template <class V, EpilogueKind kKind>
void linear2(const Linear2Epilogue& e) {
  for (int row = 0; row < e.rows; ++row) {
    const RowScaling<V> scaling{e.column_scales, e.column_shift, e.column_bias,
                                factor_of<V>(e.row_scales, row), factor_of<V>(e.bias_factors, row)};
    for (int column = 0; column < e.outputs; column += V::kLanes) {
      store_outputs(e.out[row], tile_values<V, kKind>(e.c, row, column, scaling), column, e.outputs);
    }
  }
}

}  // namespace megamoe::kernel
