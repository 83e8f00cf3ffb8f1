// Makes the library believe in a CPU with AVX2, FMA and F16C alone.
#include "base/cpu.h"

namespace {

// Before the initialisers of other files, which may ask for the CPU.
[[gnu::constructor(101)]] void hide_features() {
  megamoe::base::pretend_cpu_features(0, megamoe::base::kCpuAvxVnni | megamoe::base::kCpuAvx512F);
}

}  // namespace
