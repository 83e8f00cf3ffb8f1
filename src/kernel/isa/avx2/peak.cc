// Peak loops of the avx2 level.
#include <immintrin.h>

#include "kernel/isa/avx2/vnni.h"
#include "kernel/kernels.h"
#include "kernel/peak_loop.h"

namespace megamoe::isa_avx2 {
namespace {

struct PeakF32 {
  [[gnu::always_inline]] static void run(__m256i& c, __m256i a, __m256i b) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  }
};

/// Products of pairs of 16-bit codes and their sum: the two instructions that this level has for int8.
struct PeakS8 {
  [[gnu::always_inline]] static void run(__m256i& c, __m256i a, __m256i b) {
    __m256i pairs;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(c), "=&v"(pairs) : "v"(a), "v"(b));
  }
};

struct PeakVnni {
  [[gnu::always_inline]] static void run(__m256i& c, __m256i a, __m256i b) { dot(c, a, b); }
};

}  // namespace

constinit const kernel::Peak peak_f32 = {
    .instruction = "vfmadd231ps ymm",
    .isa = Isa::kAvx2,
    .features = 0,
    .kind = kernel::PeakKind::kFloat32,
    .operations = kernel::peak_operations(8),
    .run = kernel::peak_loop<PeakF32, __m256i>,
};

constinit const kernel::Peak peak_s8 = {
    .instruction = "vpmaddwd + vpaddd ymm",
    .isa = Isa::kAvx2,
    .features = 0,
    .kind = kernel::PeakKind::kInt8,
    .operations = kernel::peak_operations(16),
    .run = kernel::peak_loop<PeakS8, __m256i>,
};

constinit const kernel::Peak peak_s8_vnni = {
    .instruction = "vpdpbusd ymm",
    .isa = Isa::kAvx2,
    .features = base::kCpuAvxVnni,
    .kind = kernel::PeakKind::kInt8,
    .operations = kernel::peak_operations(32),
    .run = kernel::peak_loop<PeakVnni, __m256i>,
};

}  // namespace megamoe::isa_avx2
