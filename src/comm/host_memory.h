// Asks whether this host can hold the segments before anything is reserved: the kernel ends processes instead
// of refusing shared memory that it does not have.
#pragma once

#include <cstddef>

#include "megamoe/status.h"

namespace megamoe::comm {

/// An error with needed and available bytes when `ranks` segments of `bytes` exceed what is free.
Status check_host_memory(size_t bytes, int ranks);

}  // namespace megamoe::comm
