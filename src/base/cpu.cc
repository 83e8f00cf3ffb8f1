// CPUID and XCR0, read without help from the operating system's own lists.
#include "base/cpu.h"

#include <cstring>
#include <fstream>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace megamoe::base {

#if defined(__x86_64__)
namespace {

uint64_t read_xcr0() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

constexpr uint64_t kXcr0Ymm = 0x6;   // SSE and AVX state
constexpr uint64_t kXcr0Zmm = 0xe6;  // and opmask, upper zmm halves, zmm16-31
constexpr uint64_t kXcr0Tiles = 0x60000;

/// Linux gives the tile state only to processes that ask for it.
bool tile_permission() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

Cpu detect_cpu() {
  Cpu cpu;
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx)) return cpu;
  std::memcpy(cpu.vendor, &ebx, 4);
  std::memcpy(cpu.vendor + 4, &edx, 4);
  std::memcpy(cpu.vendor + 8, &ecx, 4);

  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return cpu;
  cpu.family = (eax >> 8) & 15;
  cpu.model = (eax >> 4) & 15;
  if (cpu.family == 15) cpu.family += (eax >> 20) & 255;
  if (cpu.family == 6 || cpu.family >= 15) cpu.model += ((eax >> 16) & 15) << 4;
  const auto add = [&cpu](bool present, uint32_t feature) { cpu.features |= present ? feature : 0; };
  add(ecx >> 12 & 1, kCpuFma);
  add(ecx >> 29 & 1, kCpuF16c);
  uint64_t xcr0 = 0;
  if (ecx >> 27 & 1) {
    xcr0 = read_xcr0();
    add((xcr0 & kXcr0Ymm) == kXcr0Ymm, kOsYmm);
    add((xcr0 & kXcr0Zmm) == kXcr0Zmm, kOsZmm);
  }

  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return cpu;
  const unsigned subleaves = eax;
  add(ebx >> 5 & 1, kCpuAvx2);
  add(ebx >> 16 & 1, kCpuAvx512F);
  add(ebx >> 17 & 1, kCpuAvx512Dq);
  add(ebx >> 30 & 1, kCpuAvx512Bw);
  add(ebx >> 31 & 1, kCpuAvx512Vl);
  add(ecx >> 1 & 1, kCpuAvx512Vbmi);
  add(ecx >> 11 & 1, kCpuAvx512Vnni);
  add(edx >> 23 & 1, kCpuAvx512Fp16);
  constexpr unsigned kAmxBits = 1u << 22 | 1u << 24 | 1u << 25;  // bf16, tile, int8
  if ((edx & kAmxBits) == kAmxBits) {
    add(true, kCpuAmx);
    add((xcr0 & kXcr0Tiles) == kXcr0Tiles && tile_permission(), kOsAmx);
  }
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
    add(eax >> 4 & 1, kCpuAvxVnni);
    add(eax >> 5 & 1, kCpuAvx512Bf16);
  }
  return cpu;
}
#else
Cpu detect_cpu() {
  return {};
}
#endif

namespace {
uint32_t added_features = 0, hidden_features = 0;
}

void pretend_cpu_features(uint32_t added, uint32_t hidden) {
  added_features |= added;
  hidden_features |= hidden;
}

const Cpu& this_cpu() {
  static const Cpu cpu = [] {
    Cpu detected = detect_cpu();
    detected.features = (detected.features | added_features) & ~hidden_features;
    return detected;
  }();
  return cpu;
}

MemoryHabits memory_habits(const Cpu& cpu) {
  constexpr struct {
    const char* vendor;
    int family;
    MemoryHabits habits;
  } kModels[] = {{"AuthenticAMD", 26, {true, true}}};
  for (const auto& model : kModels) {
    if (std::strcmp(model.vendor, cpu.vendor) == 0 && model.family == cpu.family) return model.habits;
  }
  return {};
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace megamoe::base
