// Test cases of the routing operators.
#pragma once

#include <optional>
#include <tuple>

#include "cli/case_file.h"
#include "megamoe/routing.h"

namespace megamoe::cli {

/// Functions that run in place of the operators, for example those of the reference.
using RoutingStandIns =
    std::tuple<Status (*)(const MoeInitRoutingArgs&, const MoeInitRoutingOutputs&),
               Status (*)(const MoeTokenPermuteArgs&, const MoeTokenPermuteOutputs&),
               Status (*)(const MoeTokenPermuteGradArgs&, const MoeTokenPermuteGradOutputs&),
               Status (*)(const MoeTokenUnpermuteArgs&, const MoeTokenUnpermuteOutputs&),
               Status (*)(const MoeTokenUnpermuteGradArgs&, const MoeTokenUnpermuteGradOutputs&),
               Status (*)(const MoeGatingTopKArgs&, const MoeGatingTopKOutputs&)>;

/// Nothing if the case is not one of a routing operator.
std::optional<Result<CaseOutputs>> run_routing_case(const Case& test, const RoutingOptions& options,
                                                    const RoutingStandIns* stand_ins = nullptr);

}  // namespace megamoe::cli
