// Loops of one instruction without memory: what a core does at best.
#pragma once

#include <cstdint>
#include <span>

#include "base/cpu.h"
#include "megamoe/isa.h"

namespace megamoe::kernel {

/// What the instruction multiplies.
enum class PeakKind : int { kFloat32 = 0, kFloat16, kBf16, kInt8 };

struct Peak {
  const char* instruction;  ///< "vpdpbusd zmm"
  Isa isa;                  ///< lowest level whose kernels may use it
  uint32_t features;        ///< of base::CpuFeature, beyond those of the level
  PeakKind kind;
  int64_t operations;  ///< of one iteration; a multiply-add is two
  void (*run)(int64_t iterations);
};

/// All loops built into the library, lowest level first.
std::span<const Peak* const> all_peaks();
/// Whether this machine has the instruction.
bool runnable(const Peak& peak);

}  // namespace megamoe::kernel
