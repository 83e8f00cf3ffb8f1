// Which level is used when a call asks for none: the variable, the table of CPU models, or a measurement.
#pragma once

#include <optional>

#include "base/isa_choice.h"

namespace megamoe::kernel {

/// Rates of one thread in operations per second, of the instructions that multiply bfloat16.
struct Bf16Rates {
  double dot_product = 0;  ///< vdpbf16ps
  double fma = 0;          ///< of float32, to which the codes are widened
};
Bf16Rates measure_bf16_rates();

/// A choice the table leaves open, by rates: the rival where its instruction is clearly faster.
base::IsaChoice decide(const base::IsaChoice& open, const Bf16Rates& rates);

/// What a CPU with the instructions of this machine gets: from the table, else measured, in about a
/// millisecond.
base::IsaChoice choose_level(const base::Cpu& cpu);

/// The level that a call asks for, or default_isa(); an error for one that does not exist or that this
/// machine cannot run.
Result<Isa> isa_of_call(std::optional<Isa> asked);

}  // namespace megamoe::kernel
