// Row operations of the avx2 level.
#include "kernel/row_ops.h"

#include "kernel/isa/avx2/decode_nibbles.h"
#include "kernel/isa/avx2/simd.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx2 {

namespace {

consteval kernel::RowOps with_byte_shuffles(kernel::RowOps ops) {
  constexpr auto kBf16 = static_cast<int>(kernel::Family::kBf16);
  ops.decode[kBf16][static_cast<int>(kernel::WeightCode::kE2M1)] = decode_e2m1;
  ops.decode[kBf16][static_cast<int>(kernel::WeightCode::kInt4Groups)] = decode_int4_groups;
  return ops;
}

}  // namespace

constinit const kernel::RowOps row_ops = with_byte_shuffles(kernel::make_row_ops<F32>("avx2", Isa::kAvx2));

}  // namespace megamoe::isa_avx2
