// Instruction-set levels: their names and needs, the table of CPU models.
#include "megamoe/isa.h"

#include <cstring>

#include "base/isa_choice.h"
#include "base/quoted.h"

namespace megamoe {
namespace base {
namespace {

struct Feature {
  uint32_t bit;
  const char* name;
};
constexpr Feature kFeatures[] = {
    {kCpuAvx2, "AVX2"},
    {kCpuFma, "FMA"},
    {kCpuF16c, "F16C"},
    {kCpuAvx512F, "AVX512F"},
    {kCpuAvx512Bw, "AVX512BW"},
    {kCpuAvx512Vl, "AVX512VL"},
    {kCpuAvx512Dq, "AVX512DQ"},
    {kCpuAvx512Vnni, "AVX512_VNNI"},
    {kCpuAvx512Bf16, "AVX512_BF16"},
    {kCpuAvx512Vbmi, "AVX512_VBMI"},
    {kOsYmm, "operating system support for 256-bit registers"},
    {kOsZmm, "operating system support for 512-bit registers"},
    {kCpuAmx, "AMX-TILE, AMX-INT8, AMX-BF16"},
    {kOsAmx, "permission of the operating system to use AMX tiles"},
};

struct Level {
  Isa isa;
  const char* name;
  const char* requirement;
  uint32_t needs;
};
constexpr uint32_t kAvx2Needs = kCpuAvx2 | kCpuFma | kCpuF16c | kOsYmm;
constexpr uint32_t kAvx512Needs =
    kAvx2Needs | kCpuAvx512F | kCpuAvx512Bw | kCpuAvx512Vl | kCpuAvx512Dq | kOsZmm;
constexpr uint32_t kVnniNeeds = kAvx512Needs | kCpuAvx512Vnni;
constexpr uint32_t kBf16Needs = kVnniNeeds | kCpuAvx512Bf16 | kCpuAvx512Vbmi;
constexpr Level kLevels[kIsaCount] = {
    {Isa::kGeneric, "generic", "nothing beyond the baseline of the architecture", 0},
    {Isa::kAvx2, "avx2", "AVX2, FMA, F16C", kAvx2Needs},
    {Isa::kAvx512, "avx512", "AVX512F+BW+VL+DQ", kAvx512Needs},
    {Isa::kAvx512Vnni, "avx512_vnni", "AVX512F+BW+VL+DQ, VNNI", kVnniNeeds},
    {Isa::kAvx512Bf16, "avx512_bf16", "AVX512F+BW+VL+DQ, VNNI, BF16, VBMI", kBf16Needs},
    {Isa::kAmx, "amx", "AVX512F+BW+VL+DQ, VNNI, BF16, VBMI, AMX-TILE+INT8+BF16",
     kBf16Needs | kCpuAmx | kOsAmx},
};
constexpr const Level& level(Isa isa) {
  return kLevels[static_cast<int>(isa)];
}

/// Models that were measured. What is missing here is measured where it runs.
struct Preference {
  const char* vendor;
  int family;
  Isa highest;  ///< the highest level the CPU can run
  Isa chosen;
  const char* reason;
};
constexpr Preference kPreferences[] = {
    {"AuthenticAMD", 25, Isa::kAvx512Bf16, Isa::kAvx512Bf16,
     "vdpbf16ps has twice the rate of fp32 FMA on it"},
    {"AuthenticAMD", 26, Isa::kAvx512Bf16, Isa::kAvx512Bf16,
     "vdpbf16ps has twice the rate of fp32 FMA on it"},
    {"GenuineIntel", 6, Isa::kAvx512Bf16, Isa::kAvx512Vnni, "fp32 FMA has twice the rate of vdpbf16ps on it"},
};

std::string known_names() {
  std::string names;
  for (const Level& l : kLevels) names += (names.empty() ? "" : ", ") + std::string(l.name);
  return names;
}

/// "GenuineIntel family 6 model 143", or "this CPU" where it does not say.
std::string model_of(const Cpu& cpu) {
  if (cpu.vendor[0] == '\0') return "this CPU";
  return std::string(cpu.vendor) + " family " + std::to_string(cpu.family) + " model " +
         std::to_string(cpu.model);
}

}  // namespace

std::string missing_for(Isa isa, const Cpu& cpu) {
  const uint32_t missing = level(isa).needs & ~cpu.features;
  std::string names;
  for (const Feature& f : kFeatures) {
    if (missing & f.bit) names += (names.empty() ? "" : ", ") + std::string(f.name);
  }
  return names;
}

IsaChoice choose_isa(const Cpu& cpu) {
  Isa highest = Isa::kGeneric;
  for (const Level& l : kLevels) {
    if ((l.needs & ~cpu.features) == 0) highest = l.isa;
  }
  for (const Preference& p : kPreferences) {
    if (std::strcmp(p.vendor, cpu.vendor) != 0 || p.family != cpu.family || p.highest != highest) continue;
    return {
        p.chosen, std::string(level(p.chosen).name) + " chosen for " + model_of(cpu) + ": " + p.reason, {}};
  }
  IsaChoice choice{
      highest,
      std::string(level(highest).name) + " is the highest level that " + model_of(cpu) + " can run",
      {}};
  // Both multiply bfloat16, and which of the two is faster is not the same on all models.
  if (highest == Isa::kAvx512Bf16) choice.rival = Isa::kAvx512Vnni;
  return choice;
}

Result<Isa> isa_of_name(const char* who, std::string_view name) {
  for (const Level& l : kLevels) {
    if (name != l.name) continue;
    const std::string missing = missing_for(l.isa, this_cpu());
    if (missing.empty()) return l.isa;
    return Status(Code::kUnsupported,
                  std::string(who) + " = " + l.name + ": this machine cannot run it, it lacks " + missing);
  }
  return Status(Code::kInvalidArgument,
                std::string(who) + " = " + shortened(name) + ": expected one of " + known_names());
}

}  // namespace base

const char* isa_name(Isa isa) {
  const int index = static_cast<int>(isa);
  return index >= 0 && index < kIsaCount ? base::kLevels[index].name : "unknown";
}

const std::vector<IsaInfo>& isa_levels() {
  static const std::vector<IsaInfo> levels = [] {
    std::vector<IsaInfo> all;
    for (const base::Level& l : base::kLevels) {
      const std::string missing = base::missing_for(l.isa, base::this_cpu());
      all.push_back(
          {l.isa, l.name, l.requirement, missing.empty(), missing.empty() ? "" : "lacks " + missing});
    }
    return all;
  }();
  return levels;
}

Result<Isa> isa_from_name(std::string_view name) {
  return base::isa_of_name("isa", name);
}

}  // namespace megamoe
