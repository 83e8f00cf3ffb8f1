// Peak loops of the avx512_vnni level.
#include <immintrin.h>

#include "kernel/kernels.h"
#include "kernel/peak_loop.h"

namespace megamoe::isa_avx512_vnni {
namespace {

struct PeakS8 {
  [[gnu::always_inline]] static void run(__m512i& c, __m512i a, __m512i b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  }
};

}  // namespace

constinit const kernel::Peak peak_s8 = {
    .instruction = "vpdpbusd zmm",
    .isa = Isa::kAvx512Vnni,
    .features = 0,
    .kind = kernel::PeakKind::kInt8,
    .operations = kernel::peak_operations(64),
    .run = kernel::peak_loop<PeakS8, __m512i>,
};

}  // namespace megamoe::isa_avx512_vnni
