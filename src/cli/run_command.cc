// megamoe run: the expert layers of a checkpoint, on recorded or made-up tokens, compared with the reference.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/capture.h"
#include "cli/command.h"
#include "cli/layer_job.h"
#include "cli/planned_layer.h"
#include "cli/progress.h"
#include "cli/scenario_weights.h"
#include "cli/table.h"
#include "cli/trace_share.h"
#include "cli/workload.h"

namespace megamoe::cli {
namespace {

constexpr int64_t kDefaultTokens = 256;
constexpr uint64_t kSeed = 1;

struct RunOptions {
  std::string checkpoint;
  std::string input;
  std::string scenario = "all";
  std::string profile = "cpu";
  int64_t layer = -1;
  int64_t tokens = 0;
  int64_t repeat = 10;
};

/// One line of the result.
struct Row {
  int64_t layer = 0;
  std::string scenario, isa;
  int64_t tokens = 0;
  double error = 0, bound = 0;
  double against_closest = 0;  ///< error against the reference of closest_scenario()
  double against_model = 0;    ///< error against the recorded output of the model; NaN without
  double tokens_per_second = 0;
  double hidden = 0;
  bool counts_equal = false;
  std::vector<std::pair<std::string, double>> stages;  ///< seconds of all threads in all timed calls

  bool good() const { return counts_equal && error < bound; }
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(c == '-' ? '_' : std::tolower(c)); });
  return text;
}

class Runner {
 public:
  Runner(const CommonOptions& common, const RunOptions& options) : common_(common), options_(options) {}

  int run() {
    auto model = checkpoint::MoeCheckpoint::open(options_.checkpoint);
    if (!model) return bad_input(model.status());
    std::shared_ptr<const checkpoint::SafeTensors> captured;
    if (!options_.input.empty()) {
      auto file = checkpoint::SafeTensors::open(options_.input);
      if (!file) return bad_input(file.status());
      captured = std::move(*file);
    }
    std::vector<int64_t> layers = (*model)->layers();
    if (options_.layer >= 0) layers = {options_.layer};
    for (int64_t layer : layers) {
      if (Status status = run_layer_of(**model, captured.get(), layer, static_cast<int64_t>(layers.size()));
          !status) {
        progress_.clear();
        return bad_input(status);
      }
    }
    progress_.clear();
    common_.json ? print_json() : print_table();
    return std::all_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.good(); }) ? kSuccess
                                                                                              : kFailed;
  }

 private:
  Status run_layer_of(const checkpoint::MoeCheckpoint& model, const checkpoint::SafeTensors* captured,
                      int64_t layer, int64_t layers) {
    const Shape shape = shape_of(model.config());
    auto base = checkpoint_job(model, layer);
    if (!base) return base.status();
    base->config.profile = options_.profile;
    auto scenarios = scenarios_named(options_.scenario, *base);
    if (!scenarios) return scenarios.status();
    jobs_ = layers * static_cast<int64_t>(scenarios->size());
    CapturedLayer input;
    std::unique_ptr<Tokens> made_up;
    if (captured != nullptr) {
      auto read = captured_layer(*captured, shape, layer, options_.tokens);
      if (!read) return read.status();
      input = *read;
    } else {
      auto moe_layer = model.layer(layer);
      if (!moe_layer) return moe_layer.status();
      auto tokens = Tokens::routed(shape, options_.tokens > 0 ? options_.tokens : kDefaultTokens, *moe_layer,
                                   model.config().routing, kSeed + static_cast<uint64_t>(layer));
      if (!tokens) return tokens.status();
      made_up = std::make_unique<Tokens>(std::move(*tokens));
      input.batch = made_up->batch();
    }
    base->batches = {input.batch};
    MEGAMOE_RETURN_IF_ERROR(check_layers(*base, input.batch.tokens(), *scenarios, common_));
    const moe::Scenario& closest = closest_scenario(*base);
    closest_ = closest.name;
    auto plain = scenario_job(*base, closest);
    if (!plain) return plain.status();
    auto want = run_reference(plain->job, input.batch, common_.ranks);
    if (!want) return want.status();
    for (const moe::Scenario* scenario : *scenarios) {
      MEGAMOE_RETURN_IF_ERROR(run_scenario(*base, *scenario, layer, *want, input));
    }
    return Status::ok();
  }

  Status run_scenario(const LayerJob& base, const moe::Scenario& scenario, int64_t layer,
                      const ReferenceResult& closest, const CapturedLayer& input) {
    auto prepared = scenario_job(base, scenario, common_.ranks);
    if (!prepared) return prepared.status();
    JobOptions options;
    options.common = &common_;
    options.repeats = options_.repeat;
    options.traced = options_.repeat;
    options.label = "layer " + std::to_string(layer) + " " + scenario.name;
    options.jobs_before = static_cast<int64_t>(rows_.size());
    options.jobs = jobs_;
    progress_.show(options.label, options.jobs_before, jobs_);
    auto result = run_layer(prepared->job, options, &progress_);
    if (!result) return result.status();
    auto want = run_reference(prepared->job, input.batch, common_.ranks);
    if (!want) return want.status();

    const BatchResult& got = result->batches[0];
    const auto count = static_cast<int64_t>(want->y.size());
    Row row;
    row.layer = layer;
    row.scenario = scenario.name;
    row.isa = isa_name(result->isa);
    row.tokens = input.batch.tokens();
    row.error = relative_error(got.y.data(), want->y.data(), count);
    row.bound = error_bound(scenario);
    row.against_closest = relative_error(got.y.data(), closest.y.data(), count);
    row.against_model =
        input.moe_output.present()
            ? relative_error(got.y.data(), static_cast<const uint16_t*>(input.moe_output.data), count)
            : NAN;
    row.tokens_per_second = static_cast<double>(row.tokens) / got.median_seconds();
    row.hidden = hidden_share(got.traced);
    row.stages = stage_seconds(got.traced);
    row.counts_equal = std::equal(want->expert_token_nums.begin(), want->expert_token_nums.end(),
                                  got.expert_token_nums.data());
    rows_.push_back(row);
    return Status::ok();
  }

  void print_table() const {
    std::printf(
        "%d %s, transport %s; error: relative Frobenius error of y against the double-precision "
        "reference\n\n",
        common_.ranks, common_.ranks == 1 ? "rank" : "ranks", common_.transport.c_str());
    Table table({"layer", "scenario", "ISA", "tokens", "error", "bound", "vs " + closest_, "vs model",
                 "tokens/s", "hidden", "verdict"});
    for (const Row& row : rows_) {
      table.add({std::to_string(row.layer), row.scenario, row.isa, std::to_string(row.tokens),
                 scientific(row.error), scientific(row.bound), scientific(row.against_closest),
                 or_dash(row.against_model, scientific), fixed(row.tokens_per_second, 0),
                 or_dash(row.hidden, percent),
                 row.good()         ? "ok"
                 : row.counts_equal ? "ERROR TOO LARGE"
                                    : "EXPERT COUNTS DIFFER"});
    }
    table.print();
    std::printf(
        "\nvs %s: error against the reference of %s. vs model: error against the recorded output of the "
        "model.\nhidden: share of dispatch and combine time during which some thread of some rank "
        "computes.\n",
        closest_.c_str(), closest_.c_str());
  }

  void print_json() const {
    auto number = [](double value) {
      return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
    };
    nlohmann::ordered_json lines = nlohmann::ordered_json::array();
    for (const Row& row : rows_) {
      nlohmann::ordered_json stages;
      for (const auto& [stage, seconds] : row.stages) stages[stage] = seconds;
      lines.push_back({{"layer", row.layer},
                       {"scenario", row.scenario},
                       {"isa", row.isa},
                       {"tokens", row.tokens},
                       {"error", number(row.error)},
                       {"bound", row.bound},
                       {"error_against_" + lower(closest_), number(row.against_closest)},
                       {"error_against_model", number(row.against_model)},
                       {"tokens_per_second", row.tokens_per_second},
                       {"hidden_share", number(row.hidden)},
                       {"expert_token_nums_equal", row.counts_equal},
                       {"stage_seconds", std::move(stages)},
                       {"ok", row.good()}});
    }
    const nlohmann::ordered_json result = {
        {"ranks", common_.ranks}, {"transport", common_.transport}, {"rows", std::move(lines)}};
    std::printf("%s\n", result.dump(2).c_str());
  }

  const CommonOptions& common_;
  const RunOptions& options_;
  Progress progress_;
  int64_t jobs_ = 0;     ///< rows there will be
  std::string closest_;  ///< the scenario whose tokens and activated rows lose least
  std::vector<Row> rows_;
};

}  // namespace

void add_run(CLI::App& app, const CommonOptions& common, std::function<int()>& action) {
  CLI::App* command =
      app.add_subcommand("run", "Run the expert layers of a checkpoint and compare with the reference");
  auto options = std::make_shared<RunOptions>();
  command->add_option("checkpoint", options->checkpoint, "Directory with config.json and safetensors files")
      ->required();
  command
      ->add_option("--input", options->input,
                   "Recorded tokens (safetensors); default: made-up tokens, routed by the model")
      ->type_name("FILE");
  command->add_option("--layer", options->layer, "Only this layer")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->type_name("N");
  add_scenarios_option(*command, options->scenario);
  add_profile_option(*command, options->profile);
  command->add_option("--tokens", options->tokens, "At most so many tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->type_name("N");
  command->add_option("--repeat", options->repeat, "Timed calls of each layer")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N")
      ->capture_default_str();
  command->callback([&common, &action, options] {
    action = [&common, options] { return Runner(common, *options).run(); };
  });
}

}  // namespace megamoe::cli
