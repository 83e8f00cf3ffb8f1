// Row operations of the avx2 level.
#include "kernel/row_ops.h"

#include "kernel/isa/avx2/bytes.h"
#include "kernel/isa/avx2/decode_bytes.h"
#include "kernel/isa/avx2/decode_nibbles.h"
#include "kernel/isa/avx2/simd.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx2 {

namespace {

consteval kernel::RowOps with_byte_shuffles(kernel::RowOps ops) {
  using enum kernel::WeightCode;
  auto& to_bf16 = ops.decode[static_cast<int>(kernel::Family::kBf16)];
  to_bf16[static_cast<int>(kE4M3)] = decode_mx_bytes<F32, Bytes, E4M3Bytes>;
  to_bf16[static_cast<int>(kE5M2)] = decode_mx_bytes<F32, Bytes, E5M2Bytes>;
  to_bf16[static_cast<int>(kE2M1)] = decode_e2m1<F32, Bytes>;
  to_bf16[static_cast<int>(kInt4Groups)] = decode_int4_groups<F32, Bytes>;
  to_bf16[static_cast<int>(kE4M3Groups)] = decode_e4m3_bytes<F32, Bytes>;
  return ops;
}

}  // namespace

constinit const kernel::RowOps row_ops = with_byte_shuffles(kernel::make_row_ops<F32>("avx2", Isa::kAvx2));

}  // namespace megamoe::isa_avx2
