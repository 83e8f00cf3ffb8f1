// megamoe check: the fused layer against the reference, stage by stage, on made-up tokens.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/layer_job.h"
#include "cli/progress.h"
#include "cli/scenario_weights.h"
#include "cli/stage_compare.h"
#include "cli/table.h"
#include "cli/workload.h"

namespace megamoe::cli {
namespace {

constexpr uint64_t kSeed = 11;

struct CheckOptions {
  std::string checkpoint;
  std::string shape = "256x128x16x4";
  std::string scenario = "all";
  std::string routing = "uniform";
  int64_t layer = -1;
  int64_t tokens = 64;
};

/// Stages of all ranks of one scenario.
struct Outcome {
  std::string scenario, isa;
  std::vector<StageDifferences> ranks;

  /// Rank and stage that differ first in the order of the data, {-1, -1} if none does.
  std::pair<int, int> first() const {
    std::pair<int, int> result{-1, -1};
    for (size_t r = 0; r < ranks.size(); ++r) {
      const int stage = first_differing_stage(ranks[r]);
      if (stage >= 0 && (result.second < 0 || stage < result.second)) result = {static_cast<int>(r), stage};
    }
    return result;
  }
  /// A stage over all ranks.
  StageDifference total(int stage) const {
    StageDifference sum{0, 0, 0, 0, -1, 0};
    for (const StageDifferences& rank : ranks) {
      const StageDifference& d = rank[static_cast<size_t>(stage)];
      sum.compared |= d.compared;
      sum.differs |= d.differs;
      sum.elements += d.elements;
      sum.differing += d.differing;
      sum.relative = std::max(sum.relative, d.relative);
    }
    return sum;
  }
};

Result<Outcome> check_scenario(const LayerJob& base, const moe::Scenario& scenario,
                               const CommonOptions& common, Progress& progress) {
  auto prepared = scenario_job(base, scenario);
  if (!prepared) return prepared.status();
  const Batch& batch = prepared->job.batches[0];
  auto want = run_reference(prepared->job, batch, common.ranks, /*stages=*/true);
  if (!want) return want.status();
  auto reports = SharedArray<StageDifferences>::make(common.ranks);
  if (!reports) return reports.status();
  const double bound = error_bound(scenario);
  JobOptions options;
  options.common = &common;
  options.label = scenario.name;
  options.inspect = [&](const MegaMoe& op, int rank) -> Status {
    auto stages = op.stages();
    if (!stages) return stages.status();
    compare_stages(*stages, want->stages[static_cast<size_t>(rank)], bound, (*reports)[rank]);
    return Status::ok();
  };
  auto result = run_layer(prepared->job, options, &progress);
  if (!result) return result.status();

  Outcome outcome;
  outcome.scenario = scenario.name;
  outcome.isa = isa_name(result->isa);
  const int64_t hidden = base.config.hidden, experts = base.config.num_experts;
  for (int r = 0; r < common.ranks; ++r) {
    const int64_t begin = first_token(batch.tokens(), common.ranks, r) * hidden;
    const int64_t end = first_token(batch.tokens(), common.ranks, r + 1) * hidden;
    const int64_t expert = first_expert(experts, common.ranks, r);
    const int64_t local = first_expert(experts, common.ranks, r + 1) - expert;
    compare_outputs(result->batches[0].y.data() + begin, want->y.data() + begin, end - begin,
                    result->batches[0].expert_token_nums.data() + expert,
                    want->expert_token_nums.data() + expert, local, bound, (*reports)[r]);
    outcome.ranks.push_back((*reports)[r]);
  }
  return outcome;
}

void print_outcome(const Outcome& outcome) {
  std::printf("%s on %s\n", outcome.scenario.c_str(), outcome.isa.c_str());
  Table table({"stage", "elements", "not equal", "relative difference", "verdict"});
  for (int s = 0; s < kStageCount; ++s) {
    const StageDifference d = outcome.total(s);
    if (d.compared == 0) continue;
    table.add({kStageNames[s], std::to_string(d.elements), std::to_string(d.differing),
               scientific(d.relative), d.differs != 0 ? "DIFFERS" : "ok"});
  }
  table.print();
  const auto [rank, stage] = outcome.first();
  if (stage < 0) {
    std::printf("No stage differs.\n\n");
  } else {
    const StageDifference& d = outcome.ranks[static_cast<size_t>(rank)][static_cast<size_t>(stage)];
    std::printf("First stage that differs: %s, on rank %d at element %lld.\n\n", kStageNames[stage], rank,
                static_cast<long long>(d.first));
  }
}

nlohmann::ordered_json to_json(const Outcome& outcome) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (int s = 0; s < kStageCount; ++s) {
    const StageDifference d = outcome.total(s);
    if (d.compared == 0) continue;
    stages.push_back({{"stage", kStageNames[s]},
                      {"elements", d.elements},
                      {"differing", d.differing},
                      {"relative", d.relative},
                      {"differs", d.differs != 0}});
  }
  const auto [rank, stage] = outcome.first();
  nlohmann::ordered_json result = {
      {"scenario", outcome.scenario}, {"isa", outcome.isa}, {"stages", std::move(stages)}};
  result["first_differing_stage"] =
      stage < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(kStageNames[stage]);
  return result;
}

int run_check(const CommonOptions& common, const CheckOptions& options) {
  auto scenarios = scenarios_named(options.scenario);
  if (!scenarios) return bad_input(scenarios.status());
  std::unique_ptr<checkpoint::MoeCheckpoint> model;
  std::unique_ptr<RandomLayer> random;
  LayerJob base;
  Shape shape;
  if (!options.checkpoint.empty()) {
    auto opened = checkpoint::MoeCheckpoint::open(options.checkpoint);
    if (!opened) return bad_input(opened.status());
    model = std::move(*opened);
    shape = shape_of(model->config());
    auto job = checkpoint_job(*model, options.layer >= 0 ? options.layer : model->layers().front());
    if (!job) return bad_input(job.status());
    base = std::move(*job);
  } else {
    auto parsed = parse_shape(options.shape);
    if (!parsed) return bad_input(parsed.status());
    shape = *parsed;
    random = std::make_unique<RandomLayer>(shape, kSeed);
    base = random->job();
  }
  auto tokens = Tokens::random(shape, options.tokens, options.routing, kSeed);
  if (!tokens) return bad_input(tokens.status());
  base.batches = {tokens->batch()};

  bool good = true;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  Progress progress;
  for (const moe::Scenario* scenario : *scenarios) {
    auto outcome = check_scenario(base, *scenario, common, progress);
    progress.clear();
    if (!outcome) return bad_input(outcome.status());
    good = good && outcome->first().second < 0;
    if (common.json) {
      all.push_back(to_json(*outcome));
    } else {
      print_outcome(*outcome);
    }
  }
  if (common.json) std::printf("%s\n", all.dump(2).c_str());
  return good ? kSuccess : kFailed;
}

}  // namespace

void add_check(CLI::App& app, const CommonOptions& common, std::function<int()>& action) {
  CLI::App* command =
      app.add_subcommand("check", "Compare with the reference and name the first stage that differs");
  auto options = std::make_shared<CheckOptions>();
  command->add_option("checkpoint", options->checkpoint,
                      "Use the weights of this checkpoint instead of random ones");
  command->add_option("--layer", options->layer, "Layer of the checkpoint; default: the first with experts")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->type_name("N");
  command->add_option("--shape", options->shape, "hidden x intermediate x experts x top-k of random weights")
      ->type_name("HxIxExK")
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "Tokens of all ranks together")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--routing", options->routing, "How tokens choose experts: uniform, zipf, one")
      ->type_name("R")
      ->capture_default_str();
  command->add_option("--scenario", options->scenario, "Scenario names with commas between them, or all")
      ->type_name("S")
      ->capture_default_str();
  command->callback(
      [&common, &action, options] { action = [&common, options] { return run_check(common, *options); }; });
}

}  // namespace megamoe::cli
