// Runs a test case with the library: the operators a case may name, and what they wrote.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/case_file.h"
#include "cli/command.h"

namespace megamoe::cli {

/// What an operator wrote, in the order of Case::expected. Without expected tensors it is empty.
using CaseOutputs = std::vector<std::vector<std::byte>>;

/// Runs the case's operator; an error is the operator's own, or says that the operator is not supported.
Result<CaseOutputs> run_case(const Case& test, const CommonOptions& common);

}  // namespace megamoe::cli
