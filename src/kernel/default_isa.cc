// The default level: MEGAMOE_ISA, the table of CPU models, a measurement where the table has no row.
#include "kernel/default_isa.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernel/peak.h"
#include "kernel/self_check.h"

namespace megamoe {
namespace kernel {
namespace {

using Clock = std::chrono::steady_clock;

double rate_of(const Peak& peak) {
  constexpr int64_t kIterations = 2000;
  const auto start = Clock::now();
  peak.run(kIterations);
  return static_cast<double>(kIterations * peak.operations) /
         std::chrono::duration<double>(Clock::now() - start).count();
}

std::string giga(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f", rate * 1e-9);
  return text;
}

const base::IsaChoice& choice_of_this_machine() {
  static const base::IsaChoice choice = [] {
    base::Cpu cpu = base::this_cpu();
    const std::string& fault = amx_fault();
    if (!fault.empty()) cpu.features &= ~base::kCpuAmx;
    base::IsaChoice chosen = choose_level(cpu);
    if (!fault.empty()) chosen.reason += "; amx is not used: " + fault;
    return chosen;
  }();
  return choice;
}

constexpr const char* kVariable = "MEGAMOE_ISA";
/// Value of the variable, or null when it is unset or empty.
const char* requested_level() {
  const char* value = std::getenv(kVariable);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace

Bf16Rates measure_bf16_rates() {
  Bf16Rates rates;
  // The first rounds bring the clock up; the best one of each counts, taken in turns.
  for (int round = 0; round < 12; ++round) {
    for (const Peak* peak : all_peaks()) {
      if (peak->isa > Isa::kAvx512Bf16 || !runnable(*peak)) continue;
      if (peak->kind == PeakKind::kBf16) rates.dot_product = std::max(rates.dot_product, rate_of(*peak));
      if (peak->kind == PeakKind::kFloat32) rates.fma = std::max(rates.fma, rate_of(*peak));
    }
  }
  return rates;
}

base::IsaChoice decide(const base::IsaChoice& open, const Bf16Rates& rates) {
  // The rates are as one to two, equal, or as two to one; between equal ones the higher level decodes faster.
  constexpr double kClearly = 1.4;
  const bool lower = open.rival && rates.fma > kClearly * rates.dot_product;
  base::IsaChoice choice;
  choice.isa = lower ? *open.rival : open.isa;
  choice.reason = std::string(isa_name(choice.isa)) + " chosen by measurement: vdpbf16ps reaches " +
                  giga(rates.dot_product) + " GFLOP/s and fp32 FMA " + giga(rates.fma) + " on one thread";
  return choice;
}

base::IsaChoice choose_level(const base::Cpu& cpu) {
  const base::IsaChoice choice = base::choose_isa(cpu);
  return choice.rival ? decide(choice, measure_bf16_rates()) : choice;
}

Result<Isa> isa_of_call(std::optional<Isa> asked) {
  return asked ? isa_from_name(isa_name(*asked)) : default_isa();
}

}  // namespace kernel

Result<Isa> default_isa() {
  if (const char* value = kernel::requested_level()) return base::isa_of_name(kernel::kVariable, value);
  return kernel::choice_of_this_machine().isa;
}

std::string default_isa_reason() {
  if (const char* value = kernel::requested_level()) {
    const Result<Isa> isa = base::isa_of_name(kernel::kVariable, value);
    return isa ? std::string(value) + " is asked for by " + kernel::kVariable : isa.status().message();
  }
  return kernel::choice_of_this_machine().reason;
}

}  // namespace megamoe
