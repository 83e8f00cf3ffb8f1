// Peak loops of the avx512_fp16 level.
#include <immintrin.h>

#include "kernel/kernels.h"
#include "kernel/peak_loop.h"

namespace megamoe::isa_avx512_fp16 {
namespace {

struct PeakF16 {
  [[gnu::always_inline]] static void run(__m512i& c, __m512i a, __m512i b) {
    asm("vfmadd231ph %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  }
};

}  // namespace

constinit const kernel::Peak peak_f16 = {
    .instruction = "vfmadd231ph zmm",
    .isa = Isa::kAvx512Bf16,
    .features = base::kCpuAvx512Fp16,
    .kind = kernel::PeakKind::kFloat16,
    .operations = kernel::peak_operations(32),
    .run = kernel::peak_loop<PeakF16, __m512i>,
};

}  // namespace megamoe::isa_avx512_fp16
