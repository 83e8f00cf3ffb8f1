// Row operations of the avx512 level.
#include "kernel/row_ops.h"

#include "kernel/isa/avx512/simd.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512 {

constinit const kernel::RowOps row_ops = kernel::make_row_ops<F32>("avx512", Isa::kAvx512);

}  // namespace megamoe::isa_avx512
