// Makes the library believe in the tiles that amx_sigill.c brings.
#include "base/cpu.h"

namespace {

// Before the initialisers of other files, which may ask for the CPU.
[[gnu::constructor(101)]] void have_tiles() {
  megamoe::base::pretend_cpu_features(megamoe::base::kCpuAmx | megamoe::base::kOsAmx);
}

}  // namespace
