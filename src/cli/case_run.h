// Runs a test case with the library: the operators a case may name, and what they wrote.
#pragma once

#include "cli/case_file.h"
#include "cli/command.h"

namespace megamoe::cli {

/// Runs the case's operator; an error is the operator's own, or says that the operator is not supported.
Result<CaseOutputs> run_case(const Case& test, const CommonOptions& common);

}  // namespace megamoe::cli
