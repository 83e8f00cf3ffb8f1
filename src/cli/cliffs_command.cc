// megamoe cliffs: whether one token more ever costs speed, whatever the routing; whether all tokens to the
// same experts cost more than a dense layer of that size; whether subnormal values cost more than others.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/cliffs_measure.h"
#include "cli/command.h"
#include "cli/planned_layer.h"
#include "cli/scenario_weights.h"
#include "cli/small_values.h"
#include "cli/table.h"
#include "cli/workload.h"

namespace megamoe::cli {
namespace {

struct CliffOptions : MeasureOptions {
  CliffOptions() {
    routing = "uniform,zipf,one";
    repeat = 15;
  }
  std::string compare = "tokens,values,dense";
  int64_t last = 33;
};

/// One comparison: speed of what may be slow over that of what it is held against.
struct Line {
  std::string scenario, what;
  int64_t tokens = 0;
  double speed = 0, noise = 0;
  double least = 0;  ///< what the speed should be at least
  bool holds() const { return speed >= least; }
};

Batch first_tokens(const Batch& batch, int64_t count) {
  Batch part;
  part.x = row_range(batch.x, 0, count);
  part.topk_ids = row_range(batch.topk_ids, 0, count);
  part.topk_weights = row_range(batch.topk_weights, 0, count);
  for (const TensorView& ids : batch.more_topk_ids) part.more_topk_ids.push_back(row_range(ids, 0, count));
  return part;
}

/// What is compared for one scenario, and the tokens behind it.
struct Plan {
  std::vector<Tokens> tokens;
  std::vector<std::vector<uint16_t>> small_x;
  std::vector<std::vector<float>> small_weights;
  std::vector<Batch> batches, dense;  ///< of the layer, and of the dense one
  std::vector<SmallValues> small_layers;
  std::vector<Comparison> comparisons;
  std::vector<Line> lines;  ///< of each comparison; `speed` is the ratio of the tokens until it is measured
};

enum LayerIndex : size_t { kLayer = 0, kDense, kFirstSmall };

class Cliffs {
 public:
  Cliffs(const CommonOptions& common, const CliffOptions& options) : common_(common), options_(options) {}

  int run() {
    auto shape = parse_shape(options_.shape);
    if (!shape) return bad_input(shape.status());
    shape_ = *shape;
    auto scenarios = scenarios_named(options_.scenario, options_.profile);
    if (!scenarios) return bad_input(scenarios.status());
    const Status possible =
        check_layers(shape_config(shape_, options_.profile, steps() + 1), *scenarios, common_);
    if (!possible) return bad_input(possible);
    const std::vector<std::string> kinds = split_names(options_.compare);
    for (const std::string& kind : kinds) {
      if (kind == "tokens" || kind == "values" || kind == "dense") continue;
      return bad_input(Status(Code::kInvalidArgument,
                              "--compare = " + options_.compare + ": expected tokens, values or dense"));
    }
    const auto compares = [&](const char* kind) {
      return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
    };
    Plan plan;
    for (const std::string& routing : split_names(options_.routing)) {
      if (!compares("tokens") && !compares("values")) break;
      if (Status status = add_batches(routing, plan); !status) return bad_input(status);
      if (compares("tokens")) add_steps(routing, plan);
      if (compares("values")) add_small_values(routing, plan);
    }
    if (compares("dense")) {
      if (Status status = add_dense(plan); !status) return bad_input(status);
    }
    for (const moe::Scenario* scenario : *scenarios) {
      if (Status status = measure(*scenario, plan); !status) return bad_input(status);
    }
    common_.json ? print_json() : print_table();
    return kSuccess;
  }

 private:
  // All ranks have equally many tokens, at least one, as profiles want it. `last` is compared with one more.
  int64_t step() const { return common_.ranks; }
  int64_t steps() const { return std::max(options_.last / step(), int64_t{1}); }

  // Tokens of a smaller batch are the first of the larger one, so that routing changes as little as it can.
  Status add_batches(const std::string& routing, Plan& plan) const {
    auto made = Tokens::random(shape_, (steps() + 1) * step(), routing, kMeasuredSeed, kMeasuredRoutings);
    if (!made) return made.status();
    const Batch batch = plan.tokens.emplace_back(std::move(*made)).batch();
    for (int64_t each = 1; each <= steps() + 1; ++each) {
      plan.batches.push_back(first_tokens(batch, each * step()));
    }
    return Status::ok();
  }

  void add_steps(const std::string& routing, Plan& plan) const {
    const size_t first = plan.batches.size() - static_cast<size_t>(steps() + 1);
    for (int64_t each = 1; each <= steps(); ++each) {
      const size_t fewer = first + static_cast<size_t>(each - 1);
      plan.comparisons.push_back({{kLayer, fewer + 1}, {kLayer, fewer}});
      plan.lines.push_back({"", "one more token, " + routing, each * step(),
                            static_cast<double>(each + 1) / static_cast<double>(each), 0, 0.95});
    }
  }

  // One token and the most, each beside its like of ordinary values.
  void add_small_values(const std::string& routing, Plan& plan) const {
    const size_t largest = plan.batches.size() - 1, one = largest - static_cast<size_t>(steps());
    size_t layer = kFirstSmall;
    for (const SmallValues& small : small_values()) {
      if (small.changes_weights()) {
        if (layer == kFirstSmall + plan.small_layers.size()) plan.small_layers.push_back(small);
      }
      for (const size_t ordinary : {one, largest}) {
        plan.comparisons.push_back(
            {{small.changes_weights() ? layer : kLayer, plan.batches.size()}, {kLayer, ordinary}});
        plan.batches.push_back(small_batch(plan.batches[ordinary], small, plan));
        plan.lines.push_back(
            {"", std::string(small.what) + ", " + routing, plan.batches[ordinary].tokens(), 1, 0, 1 / 1.5});
      }
      if (small.changes_weights()) ++layer;
    }
  }

  Batch small_batch(const Batch& batch, const SmallValues& small, Plan& plan) const {
    Batch made = batch;
    const auto* const x = static_cast<const uint16_t*>(batch.x.data);
    std::vector<uint16_t>& values = plan.small_x.emplace_back(x, x + batch.tokens() * shape_.hidden);
    multiply(values, small.tokens);
    made.x = TensorView(values.data(), DType::kBFloat16, {batch.tokens(), shape_.hidden});
    const auto* const weights = static_cast<const float*>(batch.topk_weights.data);
    std::vector<float>& router =
        plan.small_weights.emplace_back(weights, weights + batch.tokens() * shape_.topk);
    for (float& weight : router) weight *= small.router_weights;
    made.topk_weights = TensorView(router.data(), DType::kFloat32, {batch.tokens(), shape_.topk});
    return made;
  }

  // All tokens to the same top-k experts do the work of one expert top-k times as wide.
  Shape dense_shape() const { return {shape_.hidden, shape_.intermediate * shape_.topk, 1, 1}; }

  Status add_dense(Plan& plan) const {
    for (const int64_t count : kDenseTokens) {
      if (count < step()) continue;
      auto tokens = Tokens::random(shape_, count, "one", kMeasuredSeed, 1);
      auto dense = Tokens::random(dense_shape(), count, "one", kMeasuredSeed, 1);
      if (!tokens) return tokens.status();
      if (!dense) return dense.status();
      plan.batches.push_back(plan.tokens.emplace_back(std::move(*tokens)).batch());
      plan.dense.push_back(plan.tokens.emplace_back(std::move(*dense)).batch());
      plan.comparisons.push_back({{kLayer, plan.batches.size() - 1}, {kDense, plan.dense.size() - 1}});
      plan.lines.push_back({"", "all to the same experts, against dense", count, 1, 0, 1 / 1.2});
    }
    return Status::ok();
  }

  Status measure(const moe::Scenario& scenario, const Plan& plan) {
    std::vector<RandomLayer> layers;  // by LayerIndex
    layers.emplace_back(shape_, kMeasuredSeed);
    layers.emplace_back(dense_shape(), kMeasuredSeed);
    for (const SmallValues& small : plan.small_layers) {
      layers.emplace_back(shape_, kMeasuredSeed).multiply(small.weight1, small.weight2);
    }
    std::vector<ScenarioJob> prepared;  // owns the weights
    std::vector<LayerJob> jobs;
    for (const RandomLayer& random : layers) {
      LayerJob base = random.job();
      if (jobs.size() != kDense) base.config.profile = options_.profile;  // dense is a yardstick, not a layer
      base.batches = jobs.size() == kDense ? plan.dense : plan.batches;
      auto made = scenario_job(base, scenario, common_.ranks);
      if (!made) return made.status();
      jobs.push_back(made->job);
      prepared.push_back(std::move(*made));
    }
    auto pairs = measure_comparisons(jobs, plan.comparisons, common_, options_.repeat);
    if (!pairs) return pairs.status();
    for (size_t c = 0; c < plan.lines.size(); ++c) {
      Line line = plan.lines[c];
      line.scenario = scenario.name;
      line.speed /= (*pairs)[c].ratio();
      line.noise = (*pairs)[c].noise();
      lines_.push_back(line);
    }
    return Status::ok();
  }

  /// Of the lines of one kind the worst, and all others that do not hold.
  std::vector<Line> worst() const {
    std::vector<Line> kept;
    const auto alike = [](const Line& a, const Line& b) {
      return a.scenario == b.scenario && a.what == b.what;
    };
    for (const Line& line : lines_) {
      if (kept.empty() || !alike(kept.back(), line) || !line.holds()) {
        if (!kept.empty() && alike(kept.back(), line) && kept.back().holds()) kept.pop_back();
        kept.push_back(line);
      } else if (line.speed < kept.back().speed) {
        kept.back() = line;
      }
    }
    return kept;
  }

  void print_table() const {
    Table table(
        {"scenario", "worst of, and what does not hold", "tokens", "speed", "noise", "at least", "holds"});
    for (const Line& line : worst()) {
      table.add({line.scenario, line.what, std::to_string(line.tokens), percent(line.speed),
                 or_dash(line.noise, percent), percent(line.least), line.holds() ? "yes" : "no"});
    }
    table.print();
    std::printf(
        "\nspeed: tokens per second with one more token on every rank over those without; of subnormal "
        "values over "
        "others;\nof all tokens to the same experts over one dense layer of that size. Medians of pairs in "
        "turn.\n");
  }

  void print_json() const {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Line& line : lines_) {
      rows.push_back({{"scenario", line.scenario},
                      {"what", line.what},
                      {"tokens", line.tokens},
                      {"speed", line.speed},
                      {"noise", line.noise},
                      {"at_least", line.least}});
    }
    std::printf("%s\n", rows.dump(2).c_str());
  }

  static constexpr int64_t kDenseTokens[] = {1, 4, 16, 64, 256};
  const CommonOptions& common_;
  const CliffOptions& options_;
  Shape shape_;
  std::vector<Line> lines_;
};

}  // namespace

void add_cliffs(CLI::App& app, const CommonOptions& common, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("cliffs", "Find token counts, routings and values that cost speed");
  auto options = std::make_shared<CliffOptions>();
  add_measure_options(*command, *options, "Pairs of calls of a comparison");
  command
      ->add_option("--compare", options->compare,
                   "tokens: T + 1 with T; values: subnormal ones with others; dense: one set of experts "
                   "with a dense layer")
      ->type_name("LIST")
      ->capture_default_str();
  command
      ->add_option(
          "--last", options->last,
          "Compares T with T + 1 tokens for T from 1 to this, with one more on each of several ranks")
      ->check(CLI::Range(1, 4096))
      ->type_name("T")
      ->capture_default_str();
  command->callback([&common, &action, options] {
    action = [&common, options] { return Cliffs(common, *options).run(); };
  });
}

}  // namespace megamoe::cli
