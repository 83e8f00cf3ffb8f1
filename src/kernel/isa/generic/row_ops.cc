// Row operations of the generic level.
#include "kernel/row_ops.h"

#include "kernel/isa/generic/decode_codes.h"
#include "kernel/isa/generic/simd.h"
#include "kernel/kernels.h"

namespace megamoe::isa_generic {
namespace {

consteval kernel::RowOps with_tables(kernel::RowOps ops) {
  using enum kernel::WeightCode;
  auto& to_bf16 = ops.decode[static_cast<int>(kernel::Family::kBf16)];
  to_bf16[static_cast<int>(kE4M3)] = decode_mx<E4M3Codes>;
  to_bf16[static_cast<int>(kE5M2)] = decode_mx<E5M2Codes>;
  to_bf16[static_cast<int>(kE2M1)] = decode_mx<E2M1Codes>;
  to_bf16[static_cast<int>(kE4M3Groups)] = decode_e4m3_groups;
  return ops;
}

}  // namespace

constinit const kernel::RowOps row_ops = with_tables(kernel::make_row_ops<F32>("generic", Isa::kGeneric));

}  // namespace megamoe::isa_generic
