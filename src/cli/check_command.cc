// megamoe check: the fused layer against the reference, stage by stage, on made-up tokens.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/memory.h"
#include "cli/command.h"
#include "cli/dump.h"
#include "cli/layer_job.h"
#include "cli/not_empty.h"
#include "cli/planned_layer.h"
#include "cli/progress.h"
#include "cli/scenario_weights.h"
#include "cli/stage_compare.h"
#include "cli/table.h"
#include "cli/workload.h"
#include "megamoe/quantise.h"

namespace megamoe::cli {
namespace {

constexpr uint64_t kSeed = 11;

struct CheckOptions {
  std::string checkpoint;
  std::string shape = "256x128x16x4";
  std::string scenario = "all";
  std::string routing = "uniform";
  std::string profile = "cpu";
  std::string dump;
  int64_t layer = -1;
  int64_t tokens = 64;
  int64_t shared_experts = 0;
  BufferConfig config;    ///< only what the command line can choose
  Activation activation;  ///< of random weights
  bool coded_x = false;
};

/// What the operator's own parameters are called here: one row each.
constexpr struct {
  const char* option;
  int BufferConfig::*field;
  std::initializer_list<int> values;
  const char* help;
} kSettings[] = {
    {"--combine-quant-mode",
     &BufferConfig::combine_quant_mode,
     {0, 3, 4},
     "Expert rows return as bfloat16 (0), E5M2 (3) or E4M3 (4)"},
    {"--topk-weights-type",
     &BufferConfig::topk_weights_type,
     {0, 1},
     "Router weights count at home (0) or before Linear2 (1)"},
    {"--combine-comm-mode",
     &BufferConfig::combine_comm_mode,
     {0, 1, 2},
     "Rows of a token return each alone (0), merged by rank (1) or by domain (2)"},
    {"--topo-type", &BufferConfig::topo_type, {0, 1, 2}, "Ranks are one domain (0) or several (1, 2)"},
};
constexpr struct {
  const char* option;
  std::optional<double> Activation::*field;
} kActivationParameters[] = {{"--activation-clamp", &Activation::clamp},
                             {"--activation-alpha", &Activation::alpha},
                             {"--activation-beta", &Activation::beta},
                             {"--activation-linear-beta", &Activation::linear_beta}};

/// Tokens as the codes of a scenario, and the memory of both.
struct CodedTokens {
  std::vector<std::byte> codes, scales;

  /// Puts codes in the place of the tokens of a job.
  Status replace(const moe::Scenario& scenario, LayerJob& job) {
    Batch& batch = job.batches[0];
    const int64_t tokens = batch.tokens(), hidden = job.config.hidden;
    const moe::Codec& codec = *scenario.token_codec;
    const int64_t pairs = base::ceil_div(hidden, 64);
    codes.resize(static_cast<size_t>(tokens * codec.row_bytes(hidden)));
    scales.resize(static_cast<size_t>(tokens * pairs * 2));
    MEGAMOE_RETURN_IF_ERROR(quantise(quant::rule_info(*codec.rule).name, batch.x,
                                     TensorRef(codes.data(), codec.codes(), {tokens, hidden}),
                                     TensorRef(scales.data(), DType::kFloat8E8M0, {tokens, pairs, 2})));
    batch.x = TensorView(codes.data(), codec.codes(), {tokens, hidden});
    batch.scales = TensorView(scales.data(), DType::kFloat8E8M0, {tokens, 2 * pairs});
    batch.scales.shape[1] = base::ceil_div(hidden, 32);
    job.config.dispatch_quant_mode = 0;
    return Status::ok();
  }
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
    StageDifference sum{0, 0, 0, 0, 0, -1, 0};
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

/// Where the dump of one side goes, empty without a dump.
std::string side(const CheckOptions& options, const char* name) {
  return options.dump.empty() ? "" : options.dump + "/" + name;
}

/// The outputs and stages of the reference, rank by rank.
Status dump_reference(const std::string& folder, const moe::Scenario& scenario, const LayerJob& job,
                      const ReferenceResult& result) {
  const auto ranks = static_cast<int>(result.stages.size());
  const int64_t hidden = job.config.hidden, tokens = job.batches[0].tokens();
  for (int r = 0; r < ranks; ++r) {
    const int64_t token = first_token(tokens, ranks, r);
    const int64_t expert = first_expert(job.config.num_experts, ranks, r);
    const TensorView y(result.y.data() + token * hidden, DType::kBFloat16,
                       {first_token(tokens, ranks, r + 1) - token, hidden});
    const TensorView nums(result.expert_token_nums.data() + expert, DType::kInt32,
                          {first_expert(job.config.num_experts, ranks, r + 1) - expert});
    MEGAMOE_RETURN_IF_ERROR(
        write_dump(folder, scenario, r, {result.stages[static_cast<size_t>(r)], y, nums}));
  }
  return Status::ok();
}

Result<Outcome> check_scenario(const LayerJob& base, const moe::Scenario& scenario,
                               const CommonOptions& common, const CheckOptions& check, Progress& progress) {
  auto prepared = scenario_job(base, scenario, common.ranks);
  if (!prepared) return prepared.status();
  CodedTokens coded;
  if (check.coded_x) MEGAMOE_RETURN_IF_ERROR(coded.replace(scenario, prepared->job));
  const Batch& batch = prepared->job.batches[0];
  auto want = run_reference(prepared->job, batch, common.ranks, /*stages=*/true);
  if (!want) return want.status();
  const std::string fast = side(check, "fast"), reference = side(check, "reference");
  if (!reference.empty()) {
    MEGAMOE_RETURN_IF_ERROR(dump_reference(reference, scenario, prepared->job, *want));
  }
  auto reports = SharedArray<StageDifferences>::make(common.ranks);
  if (!reports) return reports.status();
  const double bound = error_bound(scenario);
  JobOptions options;
  options.common = &common;
  options.label = scenario.name;
  options.inspect = [&](const MegaMoe& op, const CallArgs& args, int rank) -> Status {
    auto stages = op.stages();
    if (!stages) return stages.status();
    compare_stages(*stages, want->stages[static_cast<size_t>(rank)], bound, (*reports)[rank]);
    if (fast.empty()) return Status::ok();
    return write_dump(fast, scenario, rank, {*stages, view(args.y), view(args.expert_token_nums)});
  };
  auto result = run_layer(prepared->job, options, &progress);
  if (!result) return result.status();

  Outcome outcome;
  outcome.scenario = scenario.name;
  outcome.isa = isa_name(result->isa);
  const int64_t hidden = base.config.hidden, experts = base.config.num_experts;
  for (int r = 0; r < common.ranks; ++r) {
    const int64_t begin = first_token(batch.tokens(), common.ranks, r);
    const int64_t tokens = first_token(batch.tokens(), common.ranks, r + 1) - begin;
    const int64_t expert = first_expert(experts, common.ranks, r);
    const int64_t local = first_expert(experts, common.ranks, r + 1) - expert;
    compare_outputs(result->batches[0].y.data() + begin * hidden, want->y.data() + begin * hidden, tokens,
                    hidden, result->batches[0].expert_token_nums.data() + expert,
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
    table.add({stage_name(s), std::to_string(d.elements), std::to_string(d.differing), scientific(d.relative),
               d.differs != 0 ? "DIFFERS" : "ok"});
  }
  table.print();
  const auto [rank, stage] = outcome.first();
  if (stage < 0) {
    std::printf("No stage differs.\n\n");
  } else {
    const StageDifference& d = outcome.ranks[static_cast<size_t>(rank)][static_cast<size_t>(stage)];
    std::printf("First stage that differs: %s, on rank %d from row %lld, column %lld.\n\n", stage_name(stage),
                rank, static_cast<long long>(d.first / d.columns),
                static_cast<long long>(d.first % d.columns));
  }
}

nlohmann::ordered_json to_json(const Outcome& outcome) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (int s = 0; s < kStageCount; ++s) {
    const StageDifference d = outcome.total(s);
    if (d.compared == 0) continue;
    stages.push_back({{"stage", stage_name(s)},
                      {"elements", d.elements},
                      {"differing", d.differing},
                      {"relative", d.relative},
                      {"differs", d.differs != 0}});
  }
  const auto [rank, stage] = outcome.first();
  nlohmann::ordered_json result = {
      {"scenario", outcome.scenario}, {"isa", outcome.isa}, {"stages", std::move(stages)}};
  result["first_differing_stage"] =
      stage < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(stage_name(stage));
  return result;
}

/// The weights of a checkpoint come with their activation and shared experts.
Status check_no_choices(const CheckOptions& options) {
  const auto refused = [](const std::string& option, const std::string& value) {
    return Status(Code::kInvalidArgument,
                  option + " = " + value + ": expected none with the weights of a checkpoint");
  };
  if (options.shared_experts != 0) return refused("--shared-experts", std::to_string(options.shared_experts));
  if (options.activation.name != Activation().name) return refused("--activation", options.activation.name);
  for (const auto& parameter : kActivationParameters) {
    const std::optional<double>& value = options.activation.*parameter.field;
    if (value) return refused(parameter.option, CLI::detail::to_string(*value));
  }
  return Status::ok();
}

/// Keeps scenarios whose tokens can come as codes; those that were named have to be such.
Status keep_coded(const std::string& names, std::vector<const moe::Scenario*>& scenarios) {
  const auto coded = [](const moe::Scenario* scenario) { return scenario->token_codec->is_mx(); };
  const auto other = std::find_if_not(scenarios.begin(), scenarios.end(), coded);
  if (other == scenarios.end()) return Status::ok();
  if (names == "all") std::erase_if(scenarios, std::not_fn(coded));
  if (names == "all" && !scenarios.empty()) return Status::ok();
  return Status(Code::kInvalidArgument,
                "--coded-x: expected scenarios with MX tokens, not " + std::string((*other)->name));
}

int run_check(const CommonOptions& common, const CheckOptions& options) {
  if (!options.dump.empty() && read_dump(side(options, "fast"))) {
    return bad_input(Status(Code::kInvalidArgument,
                            "--dump = " + options.dump + ": expected a folder that holds no dump yet"));
  }
  std::unique_ptr<checkpoint::MoeCheckpoint> model;
  LayerJob base;
  Shape shape;
  if (!options.checkpoint.empty()) {
    if (Status status = check_no_choices(options); !status) return bad_input(status);
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
    base.config = config_of(shape);
    base.activation = options.activation;
  }
  base.config.profile = options.profile;
  for (const auto& setting : kSettings) base.config.*setting.field = options.config.*setting.field;
  base.config.rank_num_per_server = options.config.rank_num_per_server;
  auto scenarios = model != nullptr ? scenarios_named(options.scenario, base)
                                    : scenarios_named(options.scenario, options.profile);
  if (!scenarios) return bad_input(scenarios.status());
  if (options.coded_x) {
    if (Status status = keep_coded(options.scenario, *scenarios); !status) return bad_input(status);
  }
  std::unique_ptr<RandomLayer> random;
  if (model != nullptr) {
    const Status possible = check_layers(base, options.tokens, *scenarios, common, options.coded_x);
    if (!possible) return bad_input(possible);
  } else {
    BufferConfig config = base.config;
    config.num_max_tokens_per_rank = most_tokens_per_rank(options.tokens, common.ranks);
    const Status possible =
        check_layers(config, *scenarios, common, {base.activation, options.shared_experts, options.coded_x});
    if (!possible) return bad_input(possible);
    random =
        std::make_unique<RandomLayer>(shape, kSeed, options.shared_experts, is_gated(options.activation));
    LayerJob weights = random->job();
    weights.config = base.config;
    weights.activation = base.activation;
    base = std::move(weights);
  }
  auto tokens = Tokens::random(shape, options.tokens, options.routing, kSeed);
  if (!tokens) return bad_input(tokens.status());
  base.batches = {tokens->batch()};

  bool good = true;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  Progress progress;
  for (const moe::Scenario* scenario : *scenarios) {
    auto outcome = check_scenario(base, *scenario, common, options, progress);
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
  add_scenarios_option(*command, options->scenario);
  add_profile_option(*command, options->profile);
  command->add_option("--shared-experts", options->shared_experts, "Experts that every token passes, 0 to 4")
      ->check(CLI::Range(0, 4))
      ->type_name("N")
      ->capture_default_str();
  for (const auto& setting : kSettings) {
    command->add_option(setting.option, options->config.*setting.field, setting.help)
        ->check(CLI::IsMember(std::set<int>(setting.values)))
        ->type_name("N")
        ->capture_default_str();
  }
  command
      ->add_option("--rank-num-per-server", options->config.rank_num_per_server,
                   "Ranks of a domain where there are several")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--activation", options->activation.name,
                   "swiglu, swiglustep, swigluoai, situglu or gelu, for random weights")
      ->type_name("NAME")
      ->capture_default_str();
  for (const auto& parameter : kActivationParameters) {
    command->add_option(parameter.option, options->activation.*parameter.field, "Parameter of the activation")
        ->type_name("X");
  }
  command->add_flag("--coded-x", options->coded_x, "Tokens come as MX codes with scales");
  command->add_option("--dump", options->dump, "Write the stages to DIR/fast and DIR/reference, for diff")
      ->check(not_empty())
      ->type_name("DIR");
  command->callback(
      [&common, &action, options] { action = [&common, options] { return run_check(common, *options); }; });
}

}  // namespace megamoe::cli
