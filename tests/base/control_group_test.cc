// Limits of control groups, read from made-up files of both versions.
#include "base/control_group.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/scratch.h"

namespace megamoe::base {
namespace {

constexpr uint64_t kNoLimit = ~uint64_t{0};

class ControlGroup : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = scratch_.file(name);
    std::filesystem::create_directories(path.parent_path());
    scratch_.write(name, text);
  }
  ControlGroupFiles of(const std::string& self) {
    write("self", self);
    return {scratch_.file("self"), scratch_.path()};
  }

  test::Scratch scratch_;
};

TEST_F(ControlGroup, NoneIsNoLimit) {
  EXPECT_EQ(quota_cores({scratch_.file("absent"), scratch_.path()}), 0);
  EXPECT_EQ(memory_limit({scratch_.file("absent"), scratch_.path()}), kNoLimit);
  for (const char* self : {"", "0::/\n", "0::\n", "nonsense\n", "1:cpu:nowhere\n", "5:memory:/a/b\n"}) {
    EXPECT_EQ(quota_cores(of(self)), 0) << self;
    EXPECT_EQ(memory_limit(of(self)), kNoLimit) << self;
  }
}

TEST_F(ControlGroup, Version2TakesTheLeastOfThoseAbove) {
  write("a/cpu.max", "350000 100000\n");
  write("a/b/cpu.max", "max 100000\n");
  write("a/b/memory.max", "max\n");
  EXPECT_EQ(quota_cores(of("0::/a/b\n")), 4);
  EXPECT_EQ(memory_limit(of("0::/a/b\n")), kNoLimit);
  write("a/b/c/cpu.max", "50000 100000\n");
  write("a/b/c/memory.max", "5000\n");
  write("a/memory.max", "4000\n");
  EXPECT_EQ(quota_cores(of("0::/a/b/c\n")), 1);
  EXPECT_EQ(memory_limit(of("0::/a/b/c\n")), 4000u);
}

TEST_F(ControlGroup, MoreCoresThanNumbersGoIsNoOverflow) {
  write("cpu.max", "17592186044415 1000\n");  // the most that Linux takes
  EXPECT_EQ(quota_cores(of("0::/\n")), std::numeric_limits<int>::max());
}

TEST_F(ControlGroup, InAContainerTheRootIsItsOwn) {
  write("cpu.max", "200000 100000\n");
  write("memory.max", "7000\n");
  EXPECT_EQ(quota_cores(of("0::/\n")), 2);
  EXPECT_EQ(quota_cores(of("0::/docker/0123\n")), 2);
  EXPECT_EQ(memory_limit(of("0::/docker/0123\n")), 7000u);
}

TEST_F(ControlGroup, Version1HasATreeForEachController) {
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  const std::string self = "5:memory:/m\n4:cpu,cpuacct:/a/b\n3:cpuset:/\n0::/\n";
  EXPECT_EQ(quota_cores(of(self)), 0);
  EXPECT_EQ(memory_limit(of(self)), 9223372036854771712u);
  write("cpu/a/cpu.cfs_quota_us", "150000\n");
  write("cpu/a/cpu.cfs_period_us", "50000\n");
  write("memory/m/memory.limit_in_bytes", "6000\n");
  EXPECT_EQ(quota_cores(of(self)), 3);
  EXPECT_EQ(memory_limit(of(self)), 6000u);
}

}  // namespace
}  // namespace megamoe::base
