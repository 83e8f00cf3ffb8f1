// Peak loops of the avx512_bf16 level.
#include <immintrin.h>

#include "kernel/kernels.h"
#include "kernel/peak_loop.h"

namespace megamoe::isa_avx512_bf16 {
namespace {

struct PeakBf16 {
  [[gnu::always_inline]] static void run(__m512i& c, __m512i a, __m512i b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  }
};

}  // namespace

constinit const kernel::Peak peak_bf16 = {
    .instruction = "vdpbf16ps zmm",
    .isa = Isa::kAvx512Bf16,
    .features = 0,
    .kind = kernel::PeakKind::kBf16,
    .operations = kernel::peak_operations(32),
    .run = kernel::peak_loop<PeakBf16, __m512i>,
};

}  // namespace megamoe::isa_avx512_bf16
