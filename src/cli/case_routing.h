// Test cases of the routing operators.
#pragma once

#include "cli/case_run.h"

namespace megamoe::cli {

Result<CaseOutputs> run_moe_init_routing_v3(const Case& test, const CommonOptions& common);
Result<CaseOutputs> run_moe_token_permute(const Case& test, const CommonOptions& common);
Result<CaseOutputs> run_moe_token_permute_grad(const Case& test, const CommonOptions& common);
Result<CaseOutputs> run_moe_token_unpermute(const Case& test, const CommonOptions& common);
Result<CaseOutputs> run_moe_token_unpermute_grad(const Case& test, const CommonOptions& common);

}  // namespace megamoe::cli
