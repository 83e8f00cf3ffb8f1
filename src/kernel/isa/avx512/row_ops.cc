// Row operations of the avx512 level.
#include "kernel/row_ops.h"

#include "kernel/isa/avx2/decode_bytes.h"
#include "kernel/isa/avx2/decode_nibbles.h"
#include "kernel/isa/avx512/bytes.h"
#include "kernel/isa/avx512/decode_groups.h"
#include "kernel/isa/avx512/simd.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512 {
namespace {

consteval kernel::RowOps with_byte_shuffles(kernel::RowOps ops) {
  using enum kernel::WeightCode;
  auto& to_bf16 = ops.decode[static_cast<int>(kernel::Family::kBf16)];
  to_bf16[static_cast<int>(kE4M3)] = isa_avx2::decode_mx_bytes<F32, Bytes, isa_avx2::E4M3Bytes>;
  to_bf16[static_cast<int>(kE5M2)] = isa_avx2::decode_mx_bytes<F32, Bytes, isa_avx2::E5M2Bytes>;
  to_bf16[static_cast<int>(kE2M1)] = isa_avx2::decode_e2m1<F32, Bytes>;
  to_bf16[static_cast<int>(kInt4Groups)] = isa_avx2::decode_int4_groups<F32, Bytes>;
  to_bf16[static_cast<int>(kE4M3Groups)] = isa_avx2::decode_e4m3_bytes<F32, Bytes>;
  auto& to_s8 = ops.decode[static_cast<int>(kernel::Family::kS8)];
  to_s8[static_cast<int>(kE2M1)] = decode_e2m1_codes;
  to_s8[static_cast<int>(kInt4Groups)] = decode_int4_codes;
  return ops;
}

}  // namespace

constinit const kernel::RowOps row_ops =
    with_byte_shuffles(kernel::make_row_ops<F32>("avx512", Isa::kAvx512));

}  // namespace megamoe::isa_avx512
