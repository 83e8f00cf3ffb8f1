// The table of row operations of one level, filled from the templates and a float vector type V.
#pragma once

#include "activation/gelu.h"
#include "activation/situglu.h"
#include "activation/swiglu.h"
#include "activation/swigluoai.h"
#include "activation/swiglustep.h"
#include "kernel/combine.h"
#include "kernel/contract.h"
#include "kernel/epilogue.h"
#include "quant/int8_per_token.h"

namespace megamoe::kernel {

template <class V>
consteval RowOps make_row_ops(const char* name, Isa isa) {
  return {
      .name = name,
      .isa = isa,
      .linear1 =
          {
#define MEGAMOE_ACTIVATION(kind, name, type, gated) linear1<V, EpilogueKind::kBf16, activation::type, gated>,
              {
#include "activation/table.inc"
              },
#undef MEGAMOE_ACTIVATION
#define MEGAMOE_ACTIVATION(kind, name, type, gated) \
  linear1<V, EpilogueKind::kScaledInt32, activation::type, gated>,
              {
#include "activation/table.inc"
              },
#undef MEGAMOE_ACTIVATION
          },
      .linear2 = {linear2<V, EpilogueKind::kBf16>, linear2<V, EpilogueKind::kScaledInt32>},
      .int8_per_token_bf16 = quant::int8_per_token<V, uint16_t>,
      .int8_per_token_f32 = quant::int8_per_token<V, float>,
      .combine = combine<V>,
  };
}

}  // namespace megamoe::kernel
