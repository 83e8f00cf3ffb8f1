// The registry: complete at the bottom, ordered, and each level gets the kernel that is named after it.
#include "kernel/registry.h"

#include <cstdio>
#include <set>
#include <string>

#include "base/cpu.h"
#include "kernel/levels.h"

namespace megamoe::kernel {
namespace {

TEST(Registry, NamesAreUniqueAndSayTheLevel) {
  std::set<std::string> names;
  for (const Gemm* gemm : all_gemms()) {
    const std::string name = gemm->name;
    EXPECT_TRUE(names.insert(name).second) << name;
    char expected[64];
    std::snprintf(expected, sizeof(expected), "%s_%dx%d_%s",
                  gemm->family == Family::kBf16 ? "bf16_f32" : "s8_s32", gemm->max_rows, kPanelColumns,
                  isa_name(gemm->isa));
    EXPECT_EQ(name, expected + std::string(gemm->features == base::kCpuAvxVnni ? "_vnni" : ""));
  }
  for (const RowOps* ops : all_row_ops()) EXPECT_STREQ(ops->name, isa_name(ops->isa));
}

TEST(Registry, EachLevelGetsTheHighestKernelNotAboveIt) {
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    for (Family family : {Family::kBf16, Family::kS8}) {
      const Gemm& chosen = gemm_for(family, isa);
      EXPECT_EQ(chosen.family, family);
      EXPECT_LE(chosen.isa, isa);
      for (const Gemm* other : all_gemms()) {
        if (other->family == family && other->isa <= isa) {
          EXPECT_LE(other->isa, chosen.isa) << other->name;
        }
      }
    }
    EXPECT_LE(row_ops_for(isa).isa, isa);
  }
#if defined(__x86_64__)
  // Indexed by level.
  const char* bf16[] = {"bf16_f32_4x32_generic", "bf16_f32_6x32_avx2",         "bf16_f32_12x32_avx512",
                        "bf16_f32_12x32_avx512", "bf16_f32_14x32_avx512_bf16", "bf16_f32_32x32_amx"};
  const bool vnni = (base::this_cpu().features & base::kCpuAvxVnni) != 0;
  const char* s8[] = {"s8_s32_4x32_generic",      vnni ? "s8_s32_6x32_avx2_vnni" : "s8_s32_6x32_avx2",
                      "s8_s32_12x32_avx512",      "s8_s32_14x32_avx512_vnni",
                      "s8_s32_14x32_avx512_vnni", "s8_s32_32x32_amx"};
  const char* row_ops[] = {"generic", "avx2", "avx512", "avx512", "avx512", "avx512"};
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    EXPECT_STREQ(gemm_for(Family::kBf16, isa).name, bf16[i]);
    EXPECT_STREQ(gemm_for(Family::kS8, isa).name, s8[i]);
    EXPECT_STREQ(row_ops_for(isa).name, row_ops[i]);
  }
#endif
}

TEST(Registry, EveryActivationHasAFunctionOnEveryLevel) {
  for (const RowOps* ops : all_row_ops()) {
    for (const auto& by_kind : ops->linear1) {
      for (const auto function : by_kind) EXPECT_NE(function, nullptr) << ops->name;
    }
  }
}

}  // namespace
}  // namespace megamoe::kernel
