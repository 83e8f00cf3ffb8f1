// megamoe plan: shapes in, chosen kernels and sizes out, without running or packing anything.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/planned_layer.h"
#include "cli/scenario_weights.h"
#include "pack/panel_source.h"

namespace megamoe::cli {
namespace {

struct PlanOptions {
  std::string shape;
  std::string scenario = "all";
  std::string profile = "cpu";
  int64_t tokens = 1024;
  int64_t max_recv = 0;
};
using Lines = std::vector<std::pair<std::string, std::string>>;

/// Bytes of the packed panels of a rank, column sums and scales included.
int64_t packed_bytes(const LinearWeights& weights, bool gated, const char* name) {
  auto g = pack::check_linear(weights, gated, name);
  return g ? static_cast<int64_t>(g->packed_bytes()) : 0;
}

Result<Lines> plan(const CommonOptions& common, const PlanOptions& options, const Shape& shape,
                   const moe::Scenario& scenario) {
  BufferConfig config = shape_config(shape, options.profile, options.tokens);
  config.max_recv_token_num = options.max_recv;
  const OneElementWeights weights;
  Lines lines;
  auto body = [&](const Group& group) -> Status {
    auto planned = plan_layer(group, config, scenario, common, weights);
    if (!planned) return planned.status();
    if (group.rank() != 0) return Status::ok();
    const Layer& layer = planned->layer;
    lines = planned->op->description();
    std::erase_if(lines, [](const auto& line) { return line.first == "weights"; });
    lines.emplace_back("packed weight bytes of a rank",
                       std::to_string(packed_bytes(layer.weight1, true, "weight1") +
                                      packed_bytes(layer.weight2, false, "weight2")));
    return Status::ok();
  };
  // Threads suffice: nothing is exchanged.
  MEGAMOE_RETURN_IF_ERROR(run_on_ranks("local", common.ranks, body));
  return lines;
}

int run_plan(const CommonOptions& common, const PlanOptions& options) {
  auto shape = parse_shape(options.shape);
  if (!shape) return bad_input(shape.status());
  auto scenarios = scenarios_named(options.scenario, options.profile);
  if (!scenarios) return bad_input(scenarios.status());
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  std::vector<Lines> plans;
  for (const moe::Scenario* scenario : *scenarios) {
    auto lines = plan(common, options, *shape, *scenario);
    if (!lines) return bad_input(lines.status());
    nlohmann::ordered_json object;
    for (const auto& [key, value] : *lines) object[key] = value;
    all.push_back(std::move(object));
    plans.push_back(std::move(*lines));
  }
  if (common.json) {
    std::printf("%s\n", all.dump(2).c_str());
    return kSuccess;
  }
  for (size_t i = 0; i < plans.size(); ++i) {
    if (i > 0) std::printf("\n");
    for (const auto& [key, value] : plans[i]) std::printf("%s: %s\n", key.c_str(), value.c_str());
  }
  return kSuccess;
}

}  // namespace

void add_plan(CLI::App& app, const CommonOptions& common, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("plan", "Show kernels, buffer sizes and bytes for a shape");
  auto options = std::make_shared<PlanOptions>();
  add_shape_option(*command, options->shape);
  command->add_option("--tokens", options->tokens, "Most tokens of one rank in one call")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--max-recv", options->max_recv, "Rows one rank can receive; 0 = all that can come")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->type_name("N");
  add_scenarios_option(*command, options->scenario);
  add_profile_option(*command, options->profile);
  command->callback(
      [&common, &action, options] { action = [&common, options] { return run_plan(common, *options); }; });
}

}  // namespace megamoe::cli
