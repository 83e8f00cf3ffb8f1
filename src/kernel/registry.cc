// The lists behind registry.h and the choice of a kernel for a level.
#include "kernel/registry.h"

#include "base/isa_choice.h"
#include "kernel/kernels.h"
#include "kernel/self_check.h"

namespace megamoe::kernel {
namespace {

constexpr const Gemm* kGemms[] = {
#define MEGAMOE_GEMM(level, symbol) &isa_##level::symbol,
#include "kernel/kernels.inc"
};

constexpr const Gemm* kGroupGemms[] = {
#define MEGAMOE_GROUP_GEMM(level, symbol) &isa_##level::symbol,
#include "kernel/kernels.inc"
};

constexpr const RowOps* kRowOps[] = {
#define MEGAMOE_ROW_OPS(level) &isa_##level::row_ops,
#include "kernel/kernels.inc"
};

#if defined(__x86_64__)
constexpr const Peak* kPeaks[] = {
#define MEGAMOE_PEAK(level, symbol) &isa_##level::symbol,
#include "kernel/kernels.inc"
};
#else
constexpr std::span<const Peak* const> kPeaks;
#endif

bool has_features(uint32_t features) {
  return (features & ~base::this_cpu().features) == 0;
}

const Gemm& highest(std::span<const Gemm* const> gemms, Family family, WeightCode code, Isa isa) {
  if (isa == Isa::kAmx && !amx_fault().empty()) isa = Isa::kAvx512Bf16;
  const Gemm* best = nullptr;
  for (const Gemm* gemm : gemms) {
    if (gemm->family != family || gemm->isa > isa || !has_features(gemm->features)) continue;
    if (gemm->takes(code) && (best == nullptr || gemm->isa >= best->isa)) best = gemm;
  }
  return *best;  // the generic level has both families
}

}  // namespace

std::span<const Gemm* const> all_gemms() {
  return kGemms;
}
std::span<const Gemm* const> all_group_gemms() {
  return kGroupGemms;
}
std::span<const RowOps* const> all_row_ops() {
  return kRowOps;
}

std::span<const Peak* const> all_peaks() {
  return kPeaks;
}

bool runnable(const Peak& peak) {
  return base::missing_for(peak.isa, base::this_cpu()).empty() && has_features(peak.features);
}
bool runnable(const Gemm& gemm) {
  return base::missing_for(gemm.isa, base::this_cpu()).empty() && has_features(gemm.features);
}

const Gemm& gemm_for(Family family, Isa isa) {
  return highest(kGemms, family, WeightCode::kStrip, isa);
}
const Gemm& group_gemm_for(Family family, WeightCode code, Isa isa) {
  return highest(kGroupGemms, family, code, isa);
}

Family e2m1_family(Isa isa) {
  return isa >= Isa::kAvx2 ? Family::kS8 : Family::kBf16;
}
bool multiplies_e4m3_by_e2m1(Isa isa) {
  constexpr WeightCode kCode = WeightCode::kE2M1;
  return group_gemm_for(Family::kBf16, kCode, isa).coded_tile[static_cast<int>(kCode)] != nullptr;
}

const RowOps& row_ops_for(Isa isa) {
  const RowOps* best = kRowOps[0];
  for (const RowOps* ops : kRowOps) {
    if (ops->isa <= isa && ops->isa > best->isa) best = ops;
  }
  return *best;
}

DecodeFunction decoder_for(Family family, WeightCode code, Isa isa) {
  const auto at = static_cast<size_t>(code);
  const Gemm* best = nullptr;
  for (const Gemm* gemm : kGemms) {
    if (gemm->family != family || gemm->isa > isa || gemm->decode[at] == nullptr) continue;
    if (has_features(gemm->features) && (best == nullptr || gemm->isa >= best->isa)) best = gemm;
  }
  if (best != nullptr) return best->decode[at];
  return row_ops_for(isa).decode[static_cast<size_t>(family)][at];
}

}  // namespace megamoe::kernel
