// Test parameters from the registry, and the skip of levels that this machine cannot run.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernel/registry.h"
#include "megamoe/isa.h"

namespace megamoe::kernel {

inline const IsaInfo& level_info(Isa isa) {
  return isa_levels()[static_cast<size_t>(isa)];
}

#define SKIP_UNLESS_RUNNABLE(level)                                                               \
  do {                                                                                            \
    const IsaInfo& megamoe_info = level_info(level);                                              \
    if (!megamoe_info.runnable) GTEST_SKIP() << megamoe_info.name << ": " << megamoe_info.reason; \
  } while (false)

#define SKIP_UNLESS_GEMM_RUNS(gemm)                                                            \
  do {                                                                                         \
    SKIP_UNLESS_RUNNABLE((gemm).isa);                                                          \
    if (!runnable(gemm)) GTEST_SKIP() << (gemm).name << " needs more than its level requires"; \
  } while (false)

inline std::string gemm_test_name(const testing::TestParamInfo<const Gemm*>& info) {
  return info.param->name;
}
inline std::string row_ops_test_name(const testing::TestParamInfo<const RowOps*>& info) {
  return info.param->name;
}

class RowOpsTest : public testing::TestWithParam<const RowOps*> {
 protected:
  void SetUp() override { SKIP_UNLESS_RUNNABLE(GetParam()->isa); }
  const RowOps& ops() const { return *GetParam(); }
  /// The level that the others are compared with.
  static const RowOps& generic() { return row_ops_for(Isa::kGeneric); }
};

#define INSTANTIATE_ROW_OPS(suite)                                                                       \
  INSTANTIATE_TEST_SUITE_P(Levels, suite, testing::ValuesIn(all_row_ops().begin(), all_row_ops().end()), \
                           row_ops_test_name)

/// A buffer with a recognisable pattern around it; `intact` tells whether the pattern still stands.
template <class T>
class Guarded {
 public:
  explicit Guarded(size_t count) : bytes_(count * sizeof(T)), storage_(bytes_ + 2 * kGuard + 64, kPattern) {
    const auto at = reinterpret_cast<uintptr_t>(storage_.data()) + kGuard;
    data_ = reinterpret_cast<unsigned char*>((at + 63) / 64 * 64);
  }
  Guarded(Guarded&&) = default;
  T* data() { return reinterpret_cast<T*>(data_); }
  T& operator[](size_t i) { return data()[i]; }
  bool intact() const {
    for (const unsigned char* p = storage_.data(); p != storage_.data() + storage_.size(); ++p) {
      if ((p < data_ || p >= data_ + bytes_) && *p != kPattern) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kPattern = 0xff;  // NaN as bf16 and as float, -1 as an integer
  size_t bytes_;
  std::vector<unsigned char> storage_;
  unsigned char* data_;
};

}  // namespace megamoe::kernel
