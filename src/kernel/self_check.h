// Kernels whose instructions are new to a machine are tried before they are trusted.
#pragma once

#include <string>

#include "kernel/contract.h"

namespace megamoe::kernel {

/// Multiplies a small problem of integers, which both families compute exactly, and compares with plain
/// loops. `groups`: a kernel with scales of groups, by way of strips. Empty where all agrees, else a sentence
/// that names the kernel and the first difference.
std::string check_gemm(const Gemm& gemm, bool groups);

/// Why the amx kernels are not used although this machine can run them; empty where they are right or cannot
/// run. Computed at the first call.
const std::string& amx_fault();

}  // namespace megamoe::kernel
