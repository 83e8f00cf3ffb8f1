// megamoe diff: the first stage, row and column where two dumps of megamoe check differ.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/dump.h"
#include "cli/dump_compare.h"
#include "cli/stage_compare.h"
#include "cli/table.h"

namespace megamoe::cli {
namespace {

struct DiffOptions {
  std::string a, b;
  std::optional<int64_t> ulps;
};

/// One stage over all ranks.
struct StageResult {
  int stage = 0;
  int64_t elements = 0, differing = 0, most_ulps = 0;
  int64_t nans = 0;  ///< elements that are NaN on one side only
  int rank = -1;     ///< of the first difference
  ElementDifference first;
  std::string shapes;  ///< where the ranks' tensors have different shapes: why there is no element
};

struct ScenarioResult {
  std::string scenario;
  std::vector<StageResult> stages;

  const StageResult* first() const {
    const auto found =
        std::find_if(stages.begin(), stages.end(), [](const StageResult& stage) { return stage.rank >= 0; });
    return found == stages.end() ? nullptr : &*found;
  }
};

Status differ(const DiffOptions& options, const std::string& what, const std::string& a,
              const std::string& b) {
  return Status(Code::kInvalidArgument,
                options.b + " has " + what + " " + b + ": expected " + a + " as " + options.a);
}

std::string described(const TensorView& tensor) {
  return std::string(dtype_name(tensor.dtype)) + " " + tensor.shape_text();
}

/// Adds one rank to a stage. False where neither dump has the stage.
Result<bool> add_rank(const DiffOptions& options, const checkpoint::SafeTensors& a,
                      const checkpoint::SafeTensors& b, int rank, StageResult& result) {
  const std::string name = stage_name(result.stage);
  if (!a.has(name) && !b.has(name)) return false;
  TensorView sides[2];
  std::string texts[2] = {"nothing", "nothing"};
  for (int side = 0; side < 2; ++side) {
    const checkpoint::SafeTensors& file = side == 0 ? a : b;
    if (!file.has(name)) continue;
    auto tensor = file.find(name);
    if (!tensor) return tensor.status();
    sides[side] = *tensor;
    texts[side] = described(*tensor);
  }
  if (texts[0] != texts[1]) {
    ++result.differing;
    if (result.rank >= 0) return true;
    result.rank = rank;
    result.shapes = texts[0] + " in " + options.a + ", " + texts[1] + " in " + options.b;
    return true;
  }
  TensorDifference difference = compare_tensors(sides[0], sides[1], options.ulps);
  result.elements += difference.elements;
  result.differing += difference.differing;
  result.most_ulps = std::max(result.most_ulps, difference.most_ulps);
  result.nans += difference.nans;
  if (difference.first && result.rank < 0) {
    result.rank = rank;
    result.first = std::move(*difference.first);
  }
  return true;
}

Result<ScenarioResult> compare_scenario(const DiffOptions& options, const ScenarioDump& a,
                                        const ScenarioDump& b) {
  if (a.ranks.size() != b.ranks.size()) {
    return differ(options, "ranks of " + a.scenario + ":", std::to_string(a.ranks.size()),
                  std::to_string(b.ranks.size()));
  }
  ScenarioResult result{a.scenario, {}};
  for (int stage = 0; stage < kStageCount; ++stage) {
    StageResult of_stage;
    of_stage.stage = stage;
    bool present = false;
    for (size_t rank = 0; rank < a.ranks.size(); ++rank) {
      auto added = add_rank(options, *a.ranks[rank], *b.ranks[rank], static_cast<int>(rank), of_stage);
      if (!added) return added.status();
      present = present || *added;
    }
    if (present) result.stages.push_back(std::move(of_stage));
  }
  return result;
}

/// "token 5, slot 2 of rank 1" of a row that belongs to a slot; empty for other stages.
std::string origin(const ScenarioDump& dump, const StageResult& result) {
  if (result.stage >= kCountsStage || !result.shapes.empty()) return "";
  const bool shared = stage_table()[static_cast<size_t>(result.stage)].shared;
  auto order = dump.ranks[static_cast<size_t>(result.rank)]->find(shared ? "shared row order" : "row order");
  if (!order || order->dims != 2 || order->shape[1] != 3 || result.first.row >= order->shape[0]) return "";
  const auto* home = static_cast<const int64_t*>(order->data) + result.first.row * 3;
  return " (token " + std::to_string(home[1]) + ", " + (shared ? "shared expert " : "slot ") +
         std::to_string(home[2]) + " of rank " + std::to_string(home[0]) + ")";
}

std::string ulps_text(const ElementDifference& difference) {
  return difference.ulps ? std::to_string(*difference.ulps) : "NaN";
}

void print(const ScenarioResult& result, const ScenarioDump& a) {
  std::printf("%s\n", result.scenario.c_str());
  Table table({"stage", "elements", "differ", "most ulps", "verdict"});
  for (const StageResult& stage : result.stages) {
    table.add({stage_name(stage.stage), std::to_string(stage.elements), std::to_string(stage.differing),
               stage.nans > 0 ? "NaN" : std::to_string(stage.most_ulps),
               stage.rank < 0 ? "same" : "DIFFERS"});
  }
  table.print();
  const StageResult* first = result.first();
  if (first == nullptr) {
    std::printf("No stage differs.\n\n");
  } else if (!first->shapes.empty()) {
    std::printf("First difference: %s on rank %d: %s.\n\n", stage_name(first->stage), first->rank,
                first->shapes.c_str());
  } else {
    std::printf("First difference: %s on rank %d, row %lld%s, column %lld: %s and %s, ulps apart: %s.\n\n",
                stage_name(first->stage), first->rank, static_cast<long long>(first->first.row),
                origin(a, *first).c_str(), static_cast<long long>(first->first.column),
                first->first.a.c_str(), first->first.b.c_str(), ulps_text(first->first).c_str());
  }
}

nlohmann::ordered_json to_json(const ScenarioResult& result) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StageResult& stage : result.stages) {
    stages.push_back(
        {{"stage", stage_name(stage.stage)},
         {"elements", stage.elements},
         {"differing", stage.differing},
         {"most_ulps", stage.nans > 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(stage.most_ulps)},
         {"nans", stage.nans}});
  }
  nlohmann::ordered_json json = {{"scenario", result.scenario}, {"stages", std::move(stages)}};
  const StageResult* first = result.first();
  if (first == nullptr) {
    json["first"] = nullptr;
    return json;
  }
  json["first"] = {{"stage", stage_name(first->stage)}, {"rank", first->rank}};
  if (!first->shapes.empty()) {
    json["first"]["shapes"] = first->shapes;
    return json;
  }
  json["first"]["row"] = first->first.row;
  json["first"]["column"] = first->first.column;
  json["first"]["a"] = first->first.a;
  json["first"]["b"] = first->first.b;
  json["first"]["ulps"] =
      first->first.ulps ? nlohmann::ordered_json(*first->first.ulps) : nlohmann::ordered_json();
  return json;
}

int run_diff(const CommonOptions& common, const DiffOptions& options) {
  auto a = read_dump(options.a), b = read_dump(options.b);
  if (!a) return bad_input(a.status());
  if (!b) return bad_input(b.status());
  const auto names = [](const std::vector<ScenarioDump>& dumps) {
    std::string text;
    for (const ScenarioDump& dump : dumps) text += (text.empty() ? "" : ", ") + dump.scenario;
    return text;
  };
  if (names(*a) != names(*b)) return bad_input(differ(options, "scenarios", names(*a), names(*b)));
  bool same = true;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (size_t i = 0; i < a->size(); ++i) {
    auto result = compare_scenario(options, (*a)[i], (*b)[i]);
    if (!result) return bad_input(result.status());
    same = same && result->first() == nullptr;
    if (common.json) {
      all.push_back(to_json(*result));
    } else {
      print(*result, (*a)[i]);
    }
  }
  if (common.json) std::printf("%s\n", all.dump(2).c_str());
  return same ? kSuccess : kFailed;
}

}  // namespace

void add_diff(CLI::App& app, const CommonOptions& common, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("diff", "Name the first value in which two dumps of check differ");
  auto options = std::make_shared<DiffOptions>();
  command->add_option("a", options->a, "Folder of a dump, such as DIR/fast of check --dump DIR")->required();
  command->add_option("b", options->b, "Folder of the other")->required();
  command->add_option("--ulps", options->ulps, "Values so many representable numbers apart count as equal")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 32))
      ->type_name("N");
  command->callback(
      [&common, &action, options] { action = [&common, options] { return run_diff(common, *options); }; });
}

}  // namespace megamoe::cli
