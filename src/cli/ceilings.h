// What this machine can do at best, measured: arithmetic of a tile on cached data, bandwidth of reading
// memory.
#pragma once

#include "kernel/contract.h"

namespace megamoe::cli {

/// Operations per second (2 per multiply-add) of a family's tile at a level, with activations and panel in
/// the nearest caches, on `threads` threads.
double arithmetic_ceiling(kernel::Family family, Isa isa, int threads);

/// Bytes per second that `threads` threads read from memory far larger than the caches.
double read_ceiling(int threads);

}  // namespace megamoe::cli
