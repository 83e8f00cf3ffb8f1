// megamoe cliffs: whether one token more ever costs speed, whatever the routing; whether all tokens to the
// same experts cost more than a dense layer of that size; whether subnormal tokens cost more than others.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/scenario_weights.h"
#include "cli/table.h"
#include "cli/tune_measure.h"
#include "cli/workload.h"

namespace megamoe::cli {
namespace {

constexpr uint64_t kSeed = 7;
constexpr int kRoutings = 16;

struct CliffOptions {
  std::string shape;
  std::string scenario = "A16W16";
  std::string routing = "uniform,zipf,one";
  int64_t last = 33;
  int64_t repeat = 15;
};

/// One comparison: speed of what may be slow over that of what it is held against.
struct Line {
  std::string scenario, what;
  int64_t tokens = 0;
  double speed = 0, noise = 0;
  double least = 0;  ///< what the speed should be at least
};

Batch first_tokens(const Batch& batch, int64_t count) {
  Batch part;
  part.x = row_range(batch.x, 0, count);
  part.topk_ids = row_range(batch.topk_ids, 0, count);
  part.topk_weights = row_range(batch.topk_weights, 0, count);
  for (const TensorView& ids : batch.more_topk_ids) part.more_topk_ids.push_back(row_range(ids, 0, count));
  return part;
}

/// Pairs of neighbouring batches: batch i + 1 is the candidate, batch i what it is held against.
Result<std::vector<Pairs>> measure_neighbours(const LayerJob& job, const CommonOptions& common,
                                              int64_t repeats) {
  const BufferConfig config = largest_batch_config(job, common.ranks);
  BufferOptions options;
  options.threads = common.threads;
  options.isa = common.isa;
  const int64_t steps = static_cast<int64_t>(job.batches.size()) - 1;
  auto times = PairTimes::make(steps, repeats, common.ranks);
  if (!times) return times.status();
  auto body = [&](const Group& group) -> Status {
    auto buffer = SymmBuffer::create(group, config, options);
    if (!buffer) return buffer.status();
    auto layer = packed_layer(job, **buffer);
    if (!layer) return (*buffer)->refuse_call(layer.status());
    layer->tuning = common.tuning;
    auto op = MegaMoe::create(*buffer, std::move(*layer));
    if (!op) return (*buffer)->refuse_call(op.status());
    std::vector<uint16_t> y(
        static_cast<size_t>(config.num_max_tokens_per_rank * common.ranks * config.hidden));
    std::vector<int32_t> counts(static_cast<size_t>(config.num_experts));
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t repeat = -1; repeat < repeats; ++repeat) {  // the first pair is not timed
        for (int64_t turn = 0; turn < 2; ++turn) {
          const int64_t which = (turn + repeat + 1) % 2;
          const Batch& batch = job.batches[static_cast<size_t>(step + 1 - which)];
          const CallArgs call = rank_args(**buffer, batch, 2 * repeat + turn + 2, y.data(), counts.data());
          double* const time = times->at(step, std::max<int64_t>(repeat, 0), which, group.rank());
          time[0] = PairTimes::now();
          MEGAMOE_RETURN_IF_ERROR((*op)->run(call));
          time[1] = PairTimes::now();
        }
      }
    }
    return Status::ok();
  };
  MEGAMOE_RETURN_IF_ERROR(run_on_ranks(common.transport, common.ranks, body));
  std::vector<Pairs> pairs;
  for (int64_t step = 0; step < steps; ++step) pairs.push_back(times->collect(step));
  return pairs;
}

class Cliffs {
 public:
  Cliffs(const CommonOptions& common, const CliffOptions& options) : common_(common), options_(options) {}

  int run() {
    auto shape = parse_shape(options_.shape);
    if (!shape) return bad_input(shape.status());
    shape_ = *shape;
    auto scenarios = scenarios_named(options_.scenario);
    if (!scenarios) return bad_input(scenarios.status());
    for (const moe::Scenario* scenario : *scenarios) {
      for (const std::string& routing : split_names(options_.routing)) {
        if (Status status = steps(*scenario, routing); !status) return bad_input(status);
      }
      if (Status status = dense(*scenario); !status) return bad_input(status);
    }
    common_.json ? print_json() : print_table();
    return kSuccess;
  }

 private:
  // Tokens of a smaller batch are the first of the larger one, so that routing changes as little as it can.
  Status steps(const moe::Scenario& scenario, const std::string& routing) {
    auto tokens = Tokens::random(shape_, options_.last + 1, routing, kSeed, kRoutings);
    if (!tokens) return tokens.status();
    const RandomLayer layer(shape_, kSeed);
    LayerJob base = layer.job();
    for (int64_t count = 1; count <= options_.last + 1; ++count) {
      base.batches.push_back(first_tokens(tokens->batch(), count));
    }
    // The largest batch once more, its tokens subnormal.
    std::vector<uint16_t> subnormal = subnormal_states(base.batches.back());
    Batch small = base.batches.back();
    small.x = TensorView(subnormal.data(), DType::kBFloat16, {small.tokens(), shape_.hidden});
    base.batches.push_back(small);
    auto prepared = scenario_job(base, scenario);
    if (!prepared) return prepared.status();
    auto pairs = measure_neighbours(prepared->job, common_, options_.repeat);
    if (!pairs) return pairs.status();
    for (int64_t step = 0; step < options_.last; ++step) {
      const Pairs& pair = (*pairs)[static_cast<size_t>(step)];
      const double tokens_ratio = static_cast<double>(step + 2) / static_cast<double>(step + 1);
      lines_.push_back({scenario.name, "one more token, " + routing, step + 1, tokens_ratio / pair.ratio(),
                        pair.noise(), 0.95});
    }
    lines_.push_back({scenario.name, "subnormal tokens, " + routing, options_.last + 1,
                      1 / pairs->back().ratio(), pairs->back().noise(), 1 / 1.5});
    return Status::ok();
  }

  std::vector<uint16_t> subnormal_states(const Batch& batch) const {
    const auto* const x = static_cast<const uint16_t*>(batch.x.data);
    std::vector<uint16_t> states(x, x + batch.tokens() * shape_.hidden);
    for (uint16_t& state : states) state &= 0x807f;  // the exponent of a subnormal number
    return states;
  }

  // All tokens to the same top-k experts do the work of one expert top-k times as wide.
  Status dense(const moe::Scenario& scenario) {
    Shape wide = shape_;
    wide.intermediate *= shape_.topk;
    wide.experts = wide.topk = 1;
    std::vector<double> sparse_seconds, dense_seconds;
    for (const auto& [shape, seconds] : {std::pair(shape_, &sparse_seconds), {wide, &dense_seconds}}) {
      const RandomLayer layer(shape, kSeed);
      LayerJob base = layer.job();
      std::vector<Tokens> held;
      for (const int64_t count : kDenseTokens) {
        auto tokens = Tokens::random(shape, count, "one", kSeed, 1);
        if (!tokens) return tokens.status();
        held.push_back(std::move(*tokens));
      }
      for (const Tokens& tokens : held) base.batches.push_back(tokens.batch());
      auto prepared = scenario_job(base, scenario);
      if (!prepared) return prepared.status();
      JobOptions options;
      options.common = &common_;
      options.repeats = options_.repeat;
      auto result = run_layer(prepared->job, options, nullptr);
      if (!result) return result.status();
      for (const BatchResult& batch : result->batches) seconds->push_back(batch.median_seconds());
    }
    for (size_t i = 0; i < std::size(kDenseTokens); ++i) {
      lines_.push_back({scenario.name, "all to the same experts, against dense", kDenseTokens[i],
                        dense_seconds[i] / sparse_seconds[i], 0, 1 / 1.2});
    }
    return Status::ok();
  }

  /// Of the steps of a scenario and routing only the worst; the other lines as they are.
  std::vector<Line> worst() const {
    std::vector<Line> kept;
    for (const Line& line : lines_) {
      const bool same =
          !kept.empty() && kept.back().scenario == line.scenario && kept.back().what == line.what;
      if (!same) {
        kept.push_back(line);
      } else if (line.speed < kept.back().speed) {
        kept.back() = line;
      }
    }
    return kept;
  }

  void print_table() const {
    Table table({"scenario", "worst of", "tokens", "speed", "noise", "at least", "holds"});
    for (const Line& line : worst()) {
      table.add({line.scenario, line.what, std::to_string(line.tokens), percent(line.speed),
                 percent(line.noise), percent(line.least), line.speed >= line.least ? "yes" : "no"});
    }
    table.print();
    std::printf(
        "\nspeed: tokens per second of T + 1 tokens over those of T; of subnormal tokens over others; of "
        "all tokens\nto the same experts over one dense layer of that size. Medians of pairs in turn, of "
        "single runs for the dense layer.\n");
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
  add_shape_option(*command, options->shape);
  add_scenarios_option(*command, options->scenario);
  command->add_option("--routing", options->routing, "How tokens choose experts: uniform, zipf, one")
      ->type_name("LIST")
      ->capture_default_str();
  command->add_option("--last", options->last, "Compares T with T + 1 tokens for T from 1 to this")
      ->check(CLI::Range(1, 4096))
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--repeat", options->repeat, "Pairs of calls of a comparison")
      ->check(CLI::Range(1, 100000))
      ->type_name("N")
      ->capture_default_str();
  command->callback([&common, &action, options] {
    action = [&common, options] { return Cliffs(common, *options).run(); };
  });
}

}  // namespace megamoe::cli
