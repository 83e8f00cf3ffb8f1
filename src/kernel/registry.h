// Which kernels exist and which one a level uses. kernels.inc has one line per kernel; declarations,
// dispatch, tests and benchmarks are generated from it.
#pragma once

#include <span>

#include "kernel/contract.h"

namespace megamoe::kernel {

/// Every matrix kernel built into the library, lowest level first.
std::span<const Gemm* const> all_gemms();
/// Those with scales per group of K.
std::span<const Gemm* const> all_group_gemms();
/// Every table of row operations, lowest level first.
std::span<const RowOps* const> all_row_ops();

/// Whether this machine has the level of a kernel and the features it needs beyond it.
bool runnable(const Gemm& gemm);

/// The kernel of the highest level not above `isa`, the last in kernels.inc that this machine's features
/// allow; amx kernels only where they pass their check (self_check.h).
const Gemm& gemm_for(Family family, Isa isa);
/// With scales per group, for panels of a code.
const Gemm& group_gemm_for(Family family, WeightCode code, Isa isa);
/// The family in which a level multiplies E2M1 by E2M1 faster: both are exact inside a group. Measured; one
/// choice per level, so that a row has the same bits in any batch.
Family e2m1_family(Isa isa);
/// Whether a level multiplies E4M3 by E2M1 as integers, group by group; otherwise by the values in bf16.
bool multiplies_e4m3_by_e2m1(Isa isa);
const RowOps& row_ops_for(Isa isa);

/// From stored panels of a code to strips of a family; null where there is nothing to decode.
using DecodeFunction = void (*)(const DecodePanel&);
DecodeFunction decoder_for(Family family, WeightCode code, Isa isa);

}  // namespace megamoe::kernel
