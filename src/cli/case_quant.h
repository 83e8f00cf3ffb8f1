// Test cases of the formats: casts, quantisers, their inverses and layouts.
#pragma once

#include "cli/case_run.h"

namespace megamoe::cli {

/// x -> y in another format; `decode` is the cast to float32 that keeps NaN and infinity.
Result<CaseOutputs> run_cast(const Case& test, const CommonOptions& common);
Result<CaseOutputs> run_decode(const Case& test, const CommonOptions& common);
/// x -> y, scale by a rule, and back.
Result<CaseOutputs> run_mx_quant(const Case& test, const CommonOptions& common);
Result<CaseOutputs> run_mx_dequant(const Case& test, const CommonOptions& common);
Result<CaseOutputs> run_int8_per_token(const Case& test, const CommonOptions& common);
/// x in one layout -> y in another.
Result<CaseOutputs> run_layout(const Case& test, const CommonOptions& common);

}  // namespace megamoe::cli
