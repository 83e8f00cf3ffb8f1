// Version of the library.
#pragma once

#include "megamoe/export.h"

namespace megamoe {

/// "0.1.0"
MEGAMOE_API const char* version();

}  // namespace megamoe
