// What the options of bench and tune ask for: one shape in several scenarios, over routings and token counts.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/workload.h"
#include "moe/scenarios.h"

namespace megamoe::cli {

/// Random tokens that take kMeasuredRoutings routings in turn.
struct MeasuredCell {
  std::string routing;
  int64_t count;  ///< of tokens
  Tokens tokens;
};

struct MeasuredShape {
  Shape shape;
  std::string profile;
  std::vector<const moe::Scenario*> scenarios;
  std::vector<MeasuredCell> cells;  ///< every routing with every token count

  /// `tokens` are token counts with commas between them, as --tokens has them.
  /// Refuses what the layers themselves would refuse, before there are any.
  static Result<MeasuredShape> make(const CommonOptions& common, const MeasureOptions& options,
                                    const std::string& tokens);

  /// Random weights of the shape.
  RandomLayer layer() const { return RandomLayer(shape, kMeasuredSeed); }
  /// A batch for each cell through `layer`, which has to outlive the job.
  LayerJob job(const RandomLayer& layer) const;
};

}  // namespace megamoe::cli
