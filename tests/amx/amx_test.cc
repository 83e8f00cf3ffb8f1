// The check that amx kernels pass before they are used.
#include "kernel/levels.h"
#include "kernel/self_check.h"

namespace megamoe::kernel {
namespace {

TEST(Amx, IsUsedAfterItsCheck) {
  SKIP_UNLESS_RUNNABLE(Isa::kAmx);
  EXPECT_EQ(amx_fault(), "");
  EXPECT_STREQ(gemm_for(Family::kBf16, Isa::kAmx).name, "bf16_f32_32x32_amx");
  EXPECT_STREQ(gemm_for(Family::kS8, Isa::kAmx).name, "s8_s32_32x32_amx");
  for (const WeightCode code : {WeightCode::kE2M1, WeightCode::kInt4Groups, WeightCode::kE4M3Groups}) {
    EXPECT_STREQ(group_gemm_for(Family::kBf16, code, Isa::kAmx).name, "bf16_groups_32x32_amx");
    EXPECT_STREQ(group_gemm_for(Family::kS8, code, Isa::kAmx).name, "s8_groups_32x32_amx");
  }
}

TEST(Amx, EveryKernelPassesTheCheckAndAWrongOneIsNamed) {
  for (const Gemm* gemm : all_gemms()) {
    if (!level_info(gemm->isa).runnable) continue;
    EXPECT_EQ(check_gemm(*gemm, false), "");
  }
  for (const Gemm* gemm : all_group_gemms()) {
    if (!level_info(gemm->isa).runnable || gemm->tile == nullptr) continue;
    EXPECT_EQ(check_gemm(*gemm, true), "");
  }
  Gemm wrong = gemm_for(Family::kS8, Isa::kGeneric);
  static void (*const right)(const Tile&) = wrong.tile;
  wrong.name = "wrong";
  wrong.tile = [](const Tile& t) {
    right(t);
    static_cast<int32_t*>(t.c)[5] += 1;
  };
  EXPECT_EQ(check_gemm(wrong, false).find("wrong is wrong on this machine: row 0 of 1, column 5 is "), 0u);
}

TEST(Amx, AWrongKernelWithGroupsIsNamed) {
  Gemm wrong = group_gemm_for(Family::kS8, WeightCode::kInt4Groups, Isa::kGeneric);
  static void (*const right)(const Tile&) = wrong.tile;
  wrong.name = "wrong";
  wrong.tile = [](const Tile& t) {
    right(t);
    static_cast<float*>(t.c)[6] += 1;
  };
  EXPECT_EQ(check_gemm(wrong, true).find("wrong is wrong on this machine: row 0 of 1, column 6 is "), 0u);
}

}  // namespace
}  // namespace megamoe::kernel
