// The table of row operations of one level, filled from the templates and a float vector type V.
#pragma once

#include "activation/gelu.h"
#include "activation/situglu.h"
#include "activation/swiglu.h"
#include "activation/swigluoai.h"
#include "activation/swiglustep.h"
#include "kernel/combine.h"
#include "kernel/contract.h"
#include "kernel/decode.h"
#include "kernel/decode_groups.h"
#include "kernel/epilogue.h"
#include "kernel/row_sum.h"
#include "quant/fp8_group.h"
#include "quant/hif8.h"
#include "quant/integers.h"
#include "quant/mx.h"

namespace megamoe::kernel {

template <class V>
consteval RowOps make_row_ops(const char* name, Isa isa) {
  return {
      .name = name,
      .isa = isa,
      .linear1 =
          {
#define MEGAMOE_ACTIVATION(kind, name, type, gated, parameters) \
  linear1<V, EpilogueKind::kBf16, activation::type, gated>,
              {
#include "activation/table.inc"
              },
#undef MEGAMOE_ACTIVATION
#define MEGAMOE_ACTIVATION(kind, name, type, gated, parameters) \
  linear1<V, EpilogueKind::kScaledInt32, activation::type, gated>,
              {
#include "activation/table.inc"
              },
#undef MEGAMOE_ACTIVATION
#define MEGAMOE_ACTIVATION(kind, name, type, gated, parameters) \
  linear1<V, EpilogueKind::kScaledFloat, activation::type, gated>,
              {
#include "activation/table.inc"
              },
#undef MEGAMOE_ACTIVATION
          },
      .linear1_values = {linear1_values<V, EpilogueKind::kBf16>,
                         linear1_values<V, EpilogueKind::kScaledInt32>,
                         linear1_values<V, EpilogueKind::kScaledFloat>},
      .linear2 = {linear2<V, EpilogueKind::kBf16>, linear2<V, EpilogueKind::kScaledInt32>,
                  linear2<V, EpilogueKind::kScaledFloat>},
#define MEGAMOE_QUANT_RULE(enumerator, name, codes, scales, group, multiple, inputs, arguments, type) \
  quant::type::quantise<V>,
      .quantise =
          {
#include "quant/rules.inc"
          },
#undef MEGAMOE_QUANT_RULE
#define MEGAMOE_QUANT_RULE(enumerator, name, codes, scales, group, multiple, inputs, arguments, type) \
  quant::type::dequantise<V>,
      .dequantise =
          {
#include "quant/rules.inc"
          },
#undef MEGAMOE_QUANT_RULE
      .combine = combine<V>,
      .half_to_bf16 = half_to_bf16<V>,
      .cut_to_bf16 = cut_to_bf16<V>,
      .doubled_e2m1 = doubled_e2m1<V>,
      .decode = {{nullptr, decode_mx<V, quant::E4M3>, decode_mx<V, quant::E5M2>, decode_mx<V, quant::E2M1>,
                  nullptr, decode_int4_groups<V, Family::kBf16>, decode_e4m3_groups<V>},
                 {nullptr, nullptr, nullptr, decode_e2m1_codes<V>, decode_int4<V>,
                  decode_int4_groups<V, Family::kS8>, nullptr}},
      .sum_rows = {sum_rows<V, float>, sum_rows<V, format::Float16>, sum_rows<V, uint16_t>},
      .dot = {dot<V, float>, dot<V, format::Float16>, dot<V, uint16_t>},
      .stream_row = stream_row<V>,
      .stream_end = V::stream_end,
  };
}

}  // namespace megamoe::kernel
