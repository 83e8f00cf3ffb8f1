// Dumps: every stage of a call in files, one for each scenario and rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "megamoe/stages.h"
#include "moe/scenarios.h"

namespace megamoe::cli {

/// What one rank has after a call.
struct RankValues {
  const Stages& stages;
  TensorView y;                  ///< (tokens, hidden) bfloat16
  TensorView expert_token_nums;  ///< (E_local,) int32
};

/// Writes FOLDER/SCENARIO/rankN.safetensors: the stages of stage_table(), each (rows, columns) in its own
/// number format, then expert_token_nums and y.
Status write_dump(const std::string& folder, const moe::Scenario& scenario, int rank,
                  const RankValues& values);

/// The files of one scenario, by rank.
struct ScenarioDump {
  std::string scenario;
  std::vector<std::shared_ptr<const checkpoint::SafeTensors>> ranks;
};
Result<std::vector<ScenarioDump>> read_dump(const std::string& folder);

}  // namespace megamoe::cli
