// Row operations of the generic level.
#include "kernel/row_ops.h"

#include "kernel/isa/generic/simd.h"
#include "kernel/kernels.h"

namespace megamoe::isa_generic {

constinit const kernel::RowOps row_ops = kernel::make_row_ops<F32>("generic", Isa::kGeneric);

}  // namespace megamoe::isa_generic
