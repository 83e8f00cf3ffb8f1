// Declarations of every kernel in kernels.inc.
#pragma once

#include "kernel/contract.h"
#include "kernel/peak.h"

#define MEGAMOE_GEMM(level, symbol)   \
  namespace megamoe::isa_##level {    \
    extern const kernel::Gemm symbol; \
  }
#define MEGAMOE_GROUP_GEMM(level, symbol) \
  namespace megamoe::isa_##level {        \
    extern const kernel::Gemm symbol;     \
  }
#define MEGAMOE_ROW_OPS(level)           \
  namespace megamoe::isa_##level {       \
    extern const kernel::RowOps row_ops; \
  }
#define MEGAMOE_PEAK(level, symbol)   \
  namespace megamoe::isa_##level {    \
    extern const kernel::Peak symbol; \
  }
#include "kernel/kernels.inc"
