// What happens to a tile of accumulators: scales, roundings, activation, store; over any float vector type V.
#pragma once

#include "kernel/contract.h"

namespace megamoe::kernel {

/// Accumulators of one row as values, from `column` on: plus the bias and rounded to bf16, or scaled by
/// column, plus the bias, scaled by row.
template <class V, EpilogueKind kKind>
V tile_values(const void* c, int row, int column, const float* column_scales, const float* column_bias,
              V row_scale) {
  const int64_t at = int64_t{row} * kPanelColumns + column;
  if constexpr (kKind == EpilogueKind::kBf16) {
    V value = V::load(static_cast<const float*>(c) + at);
    if (column_bias != nullptr) value = value + V::load(column_bias + column);
    return V::round_to_bf16(value);
  } else {
    V value = V::load_converted(static_cast<const int32_t*>(c) + at) * V::load(column_scales + column);
    if (column_bias != nullptr) value = value + V::load(column_bias + column);
    return value * row_scale;
  }
}

template <class V, EpilogueKind kKind>
V row_scale_of(const float* row_scales, int row) {
  if constexpr (kKind == EpilogueKind::kBf16) {
    return V::set(1.0f);
  } else {
    return V::set(row_scales[row]);
  }
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
    const V row_scale = row_scale_of<V, kKind>(e.row_scales, row);
    std::byte* out = static_cast<std::byte*>(e.out) + row * e.out_row_bytes;
    for (int column = 0; column < e.outputs; column += V::kLanes) {
      V value = tile_values<V, kKind>(e.c, row, column, e.column_scales, e.column_bias, row_scale);
      if constexpr (kGated) {
        value = activation(value, tile_values<V, kKind>(e.c, row, column + kGatedColumns, e.column_scales,
                                                        e.column_bias, row_scale));
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
void linear2(const Linear2Epilogue& e) {
  for (int row = 0; row < e.rows; ++row) {
    const V row_scale = row_scale_of<V, kKind>(e.row_scales, row);
    for (int column = 0; column < e.outputs; column += V::kLanes) {
      store_outputs(e.out[row],
                    tile_values<V, kKind>(e.c, row, column, e.column_scales, e.column_bias, row_scale),
                    column, e.outputs);
    }
  }
}

}  // namespace megamoe::kernel
