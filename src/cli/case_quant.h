// Test cases of the formats: casts, quantisers, their inverses and layouts.
#pragma once

#include "cli/case_run.h"

namespace megamoe::cli {

Result<CaseOutputs> run_int8_per_token(const Case& test, const CommonOptions& common);

}  // namespace megamoe::cli
