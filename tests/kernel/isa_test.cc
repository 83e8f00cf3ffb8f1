// Levels of instruction sets: names, the environment variable, and which level other CPU models would get.
#include "megamoe/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernel/default_isa.h"

namespace megamoe {
namespace {

class Environment {
 public:
  explicit Environment(const char* value) {
    if (const char* old = std::getenv("MEGAMOE_ISA")) old_ = old, had_ = true;
    value != nullptr ? setenv("MEGAMOE_ISA", value, 1) : unsetenv("MEGAMOE_ISA");
  }
  ~Environment() { had_ ? setenv("MEGAMOE_ISA", old_.c_str(), 1) : unsetenv("MEGAMOE_ISA"); }

 private:
  std::string old_;
  bool had_ = false;
};

TEST(Isa, LevelsAscendAndGenericRunsEverywhere) {
  const std::vector<IsaInfo>& levels = isa_levels();
  ASSERT_EQ(levels.size(), static_cast<size_t>(kIsaCount));
  for (int i = 0; i < kIsaCount; ++i) {
    EXPECT_EQ(static_cast<int>(levels[i].isa), i);
    EXPECT_STREQ(levels[i].name, isa_name(levels[i].isa));
    EXPECT_EQ(levels[i].runnable, levels[i].reason.empty());
    EXPECT_GE(levels[std::max(i - 1, 0)].runnable, levels[i].runnable) << "a level runs all kernels below it";
  }
  EXPECT_TRUE(levels[0].runnable);
}

TEST(Isa, NamesRoundTripOrSayWhyNot) {
  for (const IsaInfo& level : isa_levels()) {
    const Result<Isa> isa = isa_from_name(level.name);
    EXPECT_EQ(isa.is_ok(), level.runnable);
    if (isa) {
      EXPECT_EQ(isa.value(), level.isa);
    } else {
      EXPECT_EQ(isa.status().code(), Code::kUnsupported);
      EXPECT_NE(isa.status().message().find("lacks "), std::string::npos) << isa.status().message();
    }
  }
  const Result<Isa> unknown = isa_from_name("foo");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(unknown.status().message(),
            "isa = foo: expected one of generic, avx2, avx512, avx512_vnni, avx512_bf16, amx");
}

TEST(Isa, VariableDecides) {
  {
    const Environment set("foo");
    const Result<Isa> isa = default_isa();
    ASSERT_FALSE(isa);
    EXPECT_EQ(isa.status().message(),
              "MEGAMOE_ISA = foo: expected one of generic, avx2, avx512, avx512_vnni, avx512_bf16, amx");
    EXPECT_EQ(default_isa_reason(), isa.status().message());
  }
  for (const IsaInfo& level : isa_levels()) {
    const Environment set(level.name);
    const Result<Isa> isa = default_isa();
    EXPECT_EQ(isa.is_ok(), level.runnable);
    if (isa) {
      EXPECT_EQ(isa.value(), level.isa);
    }
    EXPECT_NE(default_isa_reason().find(level.name), std::string::npos);
  }
  for (const char* unset : {static_cast<const char*>(nullptr), ""}) {
    const Environment set(unset);
    const Result<Isa> isa = default_isa();
    ASSERT_TRUE(isa);
    EXPECT_TRUE(isa_levels()[static_cast<int>(isa.value())].runnable);
    EXPECT_NE(default_isa_reason().find(isa_name(isa.value())), std::string::npos);
  }
}

TEST(Isa, ChoiceByModel) {
  using namespace base;
  const uint32_t haswell = kCpuAvx2 | kCpuFma | kCpuF16c | kOsYmm;
  const uint32_t skylake = haswell | kCpuAvx512F | kCpuAvx512Bw | kCpuAvx512Vl | kCpuAvx512Dq | kOsZmm;
  const uint32_t cascade_lake = skylake | kCpuAvx512Vnni;
  const uint32_t cooper_lake = cascade_lake | kCpuAvx512Bf16;
  const uint32_t bf16 = cooper_lake | kCpuAvx512Vbmi;
  const auto cpu = [](const char* vendor, int family, uint32_t features) {
    Cpu c;
    std::strcpy(c.vendor, vendor);
    c.family = family;
    c.features = features;
    return c;
  };
  struct Case {
    Cpu cpu;
    Isa isa;
    std::optional<Isa> rival = std::nullopt;  ///< to be measured
  };
  const Case cases[] = {
      {cpu("", 0, 0), Isa::kGeneric},
      {cpu("GenuineIntel", 6, 0), Isa::kGeneric},
      {cpu("GenuineIntel", 6, haswell), Isa::kAvx2},
      {cpu("GenuineIntel", 6, haswell & ~kOsYmm), Isa::kGeneric},
      {cpu("GenuineIntel", 6, skylake), Isa::kAvx512},
      {cpu("GenuineIntel", 6, skylake & ~kOsZmm), Isa::kAvx2},
      {cpu("GenuineIntel", 6, cascade_lake), Isa::kAvx512Vnni},
      {cpu("GenuineIntel", 6, cooper_lake), Isa::kAvx512Vnni},
      {cpu("GenuineIntel", 6, bf16), Isa::kAvx512Vnni},
      {cpu("AuthenticAMD", 25, bf16), Isa::kAvx512Bf16},
      {cpu("AuthenticAMD", 26, bf16), Isa::kAvx512Bf16},
      {cpu("AuthenticAMD", 23, haswell), Isa::kAvx2},
      {cpu("AuthenticAMD", 27, bf16), Isa::kAvx512Bf16, Isa::kAvx512Vnni},
      {cpu("GenuineIntel", 18, bf16), Isa::kAvx512Bf16, Isa::kAvx512Vnni},
      {cpu("SomethingNew", 1, bf16), Isa::kAvx512Bf16, Isa::kAvx512Vnni},
      {cpu("SomethingNew", 1, cascade_lake), Isa::kAvx512Vnni},
      {cpu("GenuineIntel", 6, bf16 | kCpuAmx), Isa::kAvx512Vnni},
      {cpu("GenuineIntel", 6, bf16 | kCpuAmx | kOsAmx), Isa::kAmx},
  };
  for (const Case& c : cases) {
    const IsaChoice choice = choose_isa(c.cpu);
    EXPECT_EQ(choice.isa, c.isa) << choice.reason;
    EXPECT_EQ(choice.rival, c.rival) << choice.reason;
    EXPECT_EQ(choice.reason.find(isa_name(c.isa)), 0u) << choice.reason;
  }
  EXPECT_EQ(missing_for(Isa::kAvx512Bf16, cpu("", 0, skylake)), "AVX512_VNNI, AVX512_BF16, AVX512_VBMI");
}

TEST(Isa, OnlyMeasuredModelsHaveMemoryHabits) {
  const auto measured = [](const char* vendor, int family) {
    base::Cpu cpu;
    std::strcpy(cpu.vendor, vendor);
    cpu.family = family;
    const base::MemoryHabits habits = base::memory_habits(cpu);
    EXPECT_EQ(habits.keeps_read_once, habits.follows_streams);
    return habits.keeps_read_once;
  };
  EXPECT_TRUE(measured("AuthenticAMD", 26));
  EXPECT_FALSE(measured("AuthenticAMD", 25));
  EXPECT_FALSE(measured("GenuineIntel", 26));
  EXPECT_FALSE(measured("", 0));
}

TEST(Isa, AModelThatTheTableDoesNotKnowIsMeasured) {
  const base::IsaChoice open{Isa::kAvx512Bf16, "", Isa::kAvx512Vnni};
  struct Case {
    kernel::Bf16Rates rates;
    Isa isa;
  };
  // In turn as two to one, equal, and as one to two.
  for (const Case& c : {Case{{200e9, 100e9}, Isa::kAvx512Bf16}, Case{{100e9, 105e9}, Isa::kAvx512Bf16},
                        Case{{100e9, 200e9}, Isa::kAvx512Vnni}}) {
    const base::IsaChoice choice = kernel::decide(open, c.rates);
    EXPECT_EQ(choice.isa, c.isa);
    EXPECT_EQ(choice.reason.find(isa_name(c.isa)), 0u) << choice.reason;
    EXPECT_NE(choice.reason.find("vdpbf16ps reaches "), std::string::npos) << choice.reason;
  }
  base::Cpu unknown = base::this_cpu();
  std::strcpy(unknown.vendor, "SomethingNew");
  unknown.features &= ~base::kCpuAmx;
  const base::IsaChoice table = base::choose_isa(unknown);
  const base::IsaChoice choice = kernel::choose_level(unknown);
  if (!table.rival) {  // no vdpbf16ps here: nothing to compare
    EXPECT_EQ(choice.reason, table.reason);
    return;
  }
  const kernel::Bf16Rates rates = kernel::measure_bf16_rates();
  EXPECT_GT(rates.dot_product, 0);
  EXPECT_GT(rates.fma, 0);
  EXPECT_TRUE(choice.isa == table.isa || choice.isa == *table.rival);
  EXPECT_NE(choice.reason.find(" chosen by measurement: "), std::string::npos) << choice.reason;
}

}  // namespace
}  // namespace megamoe
