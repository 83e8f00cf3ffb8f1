// Peak loops of the avx512 level.
#include <immintrin.h>

#include "kernel/kernels.h"
#include "kernel/peak_loop.h"

namespace megamoe::isa_avx512 {
namespace {

struct PeakF32 {
  [[gnu::always_inline]] static void run(__m512i& c, __m512i a, __m512i b) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  }
};

/// Products of pairs of 16-bit codes and their sum: the two instructions that this level has for int8.
struct PeakS8 {
  [[gnu::always_inline]] static void run(__m512i& c, __m512i a, __m512i b) {
    __m512i pairs;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(c), "=&v"(pairs) : "v"(a), "v"(b));
  }
};

}  // namespace

constinit const kernel::Peak peak_f32 = {
    .instruction = "vfmadd231ps zmm",
    .isa = Isa::kAvx512,
    .features = 0,
    .kind = kernel::PeakKind::kFloat32,
    .operations = kernel::peak_operations(16),
    .run = kernel::peak_loop<PeakF32, __m512i>,
};

constinit const kernel::Peak peak_s8 = {
    .instruction = "vpmaddwd + vpaddd zmm",
    .isa = Isa::kAvx512,
    .features = 0,
    .kind = kernel::PeakKind::kInt8,
    .operations = kernel::peak_operations(32),
    .run = kernel::peak_loop<PeakS8, __m512i>,
};

}  // namespace megamoe::isa_avx512
