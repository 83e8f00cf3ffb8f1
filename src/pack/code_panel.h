// Panels of 8- and 4-bit codes in their stored form (kernel::WeightCode).
#pragma once

#include <cstddef>
#include <cstdint>

#include "megamoe/mega_moe.h"
#include "pack/panel_source.h"

namespace megamoe::pack {

/// Writes kernel::stored_panel_bytes of one panel. `sums` [32] gets the column sums of int4, else it may be
/// null.
void pack_code_panel(const LinearWeights& weights, const Geometry& geometry, int64_t expert, int64_t index,
                     std::byte* stored, int32_t* sums);

}  // namespace megamoe::pack
