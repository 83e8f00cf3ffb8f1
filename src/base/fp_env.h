// Default floating-point control while the library computes; the caller's register comes back as it was
// found.
#pragma once

namespace megamoe::base {

class DefaultFpEnv {
 public:
  DefaultFpEnv(const DefaultFpEnv&) = delete;
  DefaultFpEnv& operator=(const DefaultFpEnv&) = delete;
#if defined(__x86_64__)
  // Round to nearest, no traps, no flush-to-zero: the value the ABI starts threads with.
  DefaultFpEnv() : saved_(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr(0x1f80);
  }
  ~DefaultFpEnv() {
    __builtin_ia32_ldmxcsr(saved_);
  }

 private:
  unsigned saved_;
#else
  DefaultFpEnv() = default;
#endif
};

}  // namespace megamoe::base
