// Declarations of every kernel in kernels.inc.
#pragma once

#include "kernel/contract.h"

#define MEGAMOE_GEMM(level, symbol)   \
  namespace megamoe::isa_##level {    \
    extern const kernel::Gemm symbol; \
  }
#define MEGAMOE_GROUP_GEMM(level, symbol) MEGAMOE_GEMM(level, symbol)
#define MEGAMOE_ROW_OPS(level)           \
  namespace megamoe::isa_##level {       \
    extern const kernel::RowOps row_ops; \
  }
#include "kernel/kernels.inc"
#undef MEGAMOE_GEMM
#undef MEGAMOE_GROUP_GEMM
#undef MEGAMOE_ROW_OPS
