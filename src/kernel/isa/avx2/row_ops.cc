// Row operations of the avx2 level.
#include "kernel/row_ops.h"

#include "kernel/isa/avx2/simd.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx2 {

constinit const kernel::RowOps row_ops = kernel::make_row_ops<F32>("avx2", Isa::kAvx2);

}  // namespace megamoe::isa_avx2
