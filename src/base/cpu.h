// What the CPU offers and the operating system lets programs use.
#pragma once

#include <cstdint>
#include <string>

namespace megamoe::base {

/// Features as bits, so that a level's needs are one mask.
enum CpuFeature : uint32_t {
  kCpuAvx2 = 1u << 0,
  kCpuFma = 1u << 1,
  kCpuAvx512F = 1u << 2,
  kCpuAvx512Bw = 1u << 3,
  kCpuAvx512Vl = 1u << 4,
  kCpuAvx512Dq = 1u << 5,
  kCpuAvx512Vnni = 1u << 6,
  kCpuAvx512Bf16 = 1u << 7,
  kOsYmm = 1u << 8,    ///< the operating system saves the upper halves of 256-bit registers
  kOsZmm = 1u << 9,    ///< ... and the 512-bit and mask registers
  kCpuAmx = 1u << 10,  ///< tiles with int8 and bf16 products
  kOsAmx = 1u << 11,   ///< the operating system lets this process use tiles
  kCpuAvx512Fp16 = 1u << 12,
  kCpuAvx512Vbmi = 1u << 13,
  kCpuAvxVnni = 1u << 14,
  kCpuF16c = 1u << 15,
};

struct Cpu {
  char vendor[13] = "";  ///< "AuthenticAMD", "GenuineIntel"; empty where CPUID does not exist
  int family = 0;        ///< base plus extended family
  int model = 0;         ///< base plus extended model
  uint32_t features = 0;
};

/// Reads CPUID and XCR0. Costs microseconds; see this_cpu().
Cpu detect_cpu();
/// detect_cpu(), once per process.
const Cpu& this_cpu();

/// What a model does with memory that is read in order; false where it was not measured.
struct MemoryHabits {
  /// Lines that are asked for as read once (prefetchnta) come to the second-level cache, and leave it without
  /// a way to the third. Elsewhere they may come to the first one alone, which is smaller than a panel of
  /// weights.
  bool keeps_read_once = false;
  /// It brings in what follows a load by itself: lines announced a little ahead of the loads come faster than
  /// those of the next panel. They are announced as read once.
  bool follows_streams = false;
};
MemoryHabits memory_habits(const Cpu& cpu);

/// The CPU's own name as the system gives it, "unknown" where it does not.
std::string cpu_model();
/// For tests that bring their own processor, such as one that traps tile instructions, or want an older one:
/// this_cpu() has the `added` features too and not the `hidden` ones. Only before the first use of
/// this_cpu().
void pretend_cpu_features(uint32_t added, uint32_t hidden = 0);

}  // namespace megamoe::base
