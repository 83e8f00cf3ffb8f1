// Row operations of the avx512 level.
#include "kernel/row_ops.h"

#include "kernel/isa/avx512/decode_groups.h"
#include "kernel/isa/avx512/simd.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512 {
namespace {

consteval kernel::RowOps with_byte_shuffles(kernel::RowOps ops) {
  auto& to_s8 = ops.decode[static_cast<int>(kernel::Family::kS8)];
  to_s8[static_cast<int>(kernel::WeightCode::kE2M1)] = decode_e2m1_codes;
  to_s8[static_cast<int>(kernel::WeightCode::kInt4Groups)] = decode_int4_codes;
  return ops;
}

}  // namespace

constinit const kernel::RowOps row_ops =
    with_byte_shuffles(kernel::make_row_ops<F32>("avx512", Isa::kAvx512));

}  // namespace megamoe::isa_avx512
