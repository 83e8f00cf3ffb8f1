// megamoe bench: speed of one shape over token counts, beside the ceilings of this machine measured in the
// same run.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/memory.h"
#include "base/split.h"
#include "base/topology.h"
#include "cli/ceilings.h"
#include "cli/command.h"
#include "cli/layer_job.h"
#include "cli/measured_shape.h"
#include "cli/progress.h"
#include "cli/scenario_weights.h"
#include "cli/table.h"
#include "moe/blocking.h"

namespace megamoe::cli {
namespace {

constexpr double kSecondsPerBatch = 2.0;
constexpr int64_t kTracedCalls = 9;

struct BenchOptions : MeasureOptions {
  std::string tokens = "1,4,16,64,256";
};

// Near the point where both take equally long either may be the limit: both are measured there.
constexpr double kNear = 2;

struct Ceiling {
  ArithmeticCeiling linear1, linear2;  ///< of the families of both products
  double read = 0;                     ///< bytes per second

  double operations() const { return CeilingPasses::of_both(linear1.rate, linear2.rate); }
};

/// One line of the result.
struct Row {
  std::string scenario, isa, routing;
  int64_t tokens = 0;
  double experts = 0;  ///< with tokens, on average over the calls
  size_t calls = 0;
  double seconds = 0;
  double operations = 0;      ///< per second
  double weight_bytes = 0;    ///< per second
  Efficiency efficiency;      ///< time that the passes beside each call allow, over time taken
  double run_efficiency = 0;  ///< the same with the ceilings of the run and the median call
  Ceilings passes;            ///< their medians; 0 = not measured
  CallRest rest;              ///< of calls with a trace
  std::vector<std::pair<std::string, double>> stages;  ///< shares of the threads' time in them
  std::vector<std::string> kernels;
  Ceiling ceiling;
};

class Bench {
 public:
  Bench(const CommonOptions& common, const BenchOptions& options) : common_(common), options_(options) {}

  int run() {
    auto measured = MeasuredShape::make(common_, options_, options_.tokens);
    if (!measured) return bad_input(measured.status());
    measured_ = std::move(*measured);
    auto isa = chosen_isa(common_);
    if (!isa) return bad_input(isa.status());
    const int per_rank = common_.threads > 0 ? common_.threads
                                             : std::max(1, base::topology().usable_threads() / common_.ranks);
    const int threads = std::min(per_rank * common_.ranks, base::topology().hardware_threads);
    auto range = ReadRange::make(per_rank * common_.ranks);
    if (!range) return bad_input(range.status());
    range_ = std::move(*range);
    const double read = range_.ceiling(threads);
    for (const moe::Scenario* scenario : measured_.scenarios) {
      const Ceiling ceiling{ceiling_of(scenario->family1, *isa, threads),
                            ceiling_of(scenario->family2, *isa, threads), read};
      if (Status status = run_scenario(*scenario, ceiling); !status) {
        progress_.clear();
        return bad_input(status);
      }
    }
    progress_.clear();
    common_.json ? print_json() : print_table();
    return kSuccess;
  }

 private:
  const ArithmeticCeiling& ceiling_of(kernel::Family family, Isa isa, int threads) {
    ArithmeticCeiling& ceiling = ceilings_[static_cast<int>(family)];
    if (ceiling.rate == 0) ceiling = arithmetic_ceiling(family, isa, threads);
    return ceiling;
  }

  Status run_scenario(const moe::Scenario& scenario, const Ceiling& ceiling) {
    const RandomLayer layer = measured_.layer();
    const LayerJob base = measured_.job(layer);
    const std::vector<MeasuredCell>& cells = measured_.cells;
    auto prepared = scenario_job(base, scenario, common_.ranks);
    if (!prepared) return prepared.status();
    JobOptions options;
    options.common = &common_;
    options.repeats = options_.repeat;
    options.seconds_per_batch = kSecondsPerBatch;
    options.traced = kTracedCalls;
    options.label = scenario.name;
    options.jobs_before = static_cast<int64_t>(rows_.size() / cells.size());
    options.jobs = static_cast<int64_t>(measured_.scenarios.size());
    const Shape& shape = measured_.shape;
    const double layer_weights = 3.0 * static_cast<double>(shape.hidden * shape.intermediate);
    const double expert_bytes = layer_weights * dtype_bits(scenario.weight) / 8;
    const double token_operations = 2.0 * static_cast<double>(shape.topk) * layer_weights;
    const CeilingPasses passes(range_, ceiling.linear1, ceiling.linear2);
    options.pass = [&](base::Team& team, int rank, size_t batch, double seconds) {
      const double reading = cells[batch].tokens.distinct_experts() * expert_bytes / ceiling.read;
      const double computing =
          static_cast<double>(base.batches[batch].tokens()) * token_operations / ceiling.operations();
      return passes.run(team, rank, seconds, reading * kNear > computing, computing * kNear > reading);
    };
    auto result = run_layer(prepared->job, options, &progress_);
    if (!result) return result.status();
    for (size_t b = 0; b < cells.size(); ++b) {
      Row row;
      row.scenario = scenario.name;
      row.isa = isa_name(result->isa);
      row.routing = cells[b].routing;
      row.tokens = base.batches[b].tokens();
      row.experts = cells[b].tokens.distinct_experts();
      row.calls = result->batches[b].seconds.size();
      row.seconds = result->batches[b].median_seconds();
      row.operations = static_cast<double>(row.tokens) * token_operations / row.seconds;
      row.weight_bytes = row.experts * expert_bytes / row.seconds;
      row.ceiling = ceiling;
      row.run_efficiency = std::max(row.weight_bytes / ceiling.read, row.operations / ceiling.operations());
      std::vector<TimedCall> calls;
      for (const double seconds : result->batches[b].seconds) {
        const int64_t routing = routing_of(base.batches[b], static_cast<int64_t>(calls.size()) + 1);
        calls.push_back({seconds,
                         static_cast<double>(cells[b].tokens.distinct_experts(routing)) * expert_bytes,
                         static_cast<double>(row.tokens) * token_operations});
      }
      const std::vector<Ceilings>& beside = result->batches[b].passes;
      row.efficiency = paired_efficiency(calls, beside, {ceiling.read, ceiling.operations()});
      row.passes = median_passes(beside);
      row.rest = call_rest(result->batches[b].traced, result->threads);
      row.stages = stage_shares(result->batches[b].traced);
      row.kernels = kernels_of_experts(*result, cells[b].tokens);
      rows_.push_back(row);
    }
    return Status::ok();
  }

  /// Kernels of Linear1 and then those of Linear2 that the rows of the experts meet, with the rows where
  /// there are several. The plan says them as "Linear1 rows 1 to 4".
  static std::vector<std::string> kernels_of_experts(const JobResult& result, const Tokens& tokens) {
    const std::vector<int64_t> rows = tokens.rows_of_experts();
    std::vector<std::string> texts;
    for (const char* const linear : {"Linear1", "Linear2"}) {
      std::vector<std::string> used;
      for (const auto& [key, kernel] : result.description) {
        long long first = 0, last = 0;
        if (std::sscanf(key.c_str(), (std::string(linear) + " rows %lld to %lld").c_str(), &first, &last) !=
            2) {
          continue;
        }
        const bool meets = std::any_of(rows.begin(), rows.end(), [&](int64_t all) {
          const int64_t block = base::EvenSplit{all, base::ceil_div(all, moe::kBlockRows)}.size(0);
          return first <= block && block <= last;
        });
        if (meets) used.push_back(key.substr(std::strlen(linear) + 1) + ": " + kernel);
      }
      for (std::string& text : used) {
        texts.push_back(used.size() == 1 ? text.substr(text.find(": ") + 2) : std::move(text));
      }
    }
    return texts;
  }

  /// Of the time that threads are in any stage or wait.
  static std::vector<std::pair<std::string, double>> stage_shares(const std::vector<CallSpans>& calls) {
    std::vector<std::pair<std::string, double>> stages = stage_seconds(calls);
    double all = 0;
    for (const auto& [stage, seconds] : stages) all += seconds;
    for (auto& [stage, seconds] : stages) seconds /= all;
    return stages;
  }

  static Ceilings median_passes(const std::vector<Ceilings>& passes) {
    std::vector<double> bytes, operations;
    for (const Ceilings& pass : passes) {
      bytes.push_back(pass.bytes);
      operations.push_back(pass.operations);
    }
    return {median_of(bytes), median_of(operations)};
  }

  void print_table() const {
    const Shape& shape = measured_.shape;
    std::printf("hidden %lld, intermediate %lld, experts %lld, top-%lld, %d %s (%s)\n\n",
                static_cast<long long>(shape.hidden), static_cast<long long>(shape.intermediate),
                static_cast<long long>(shape.experts), static_cast<long long>(shape.topk), common_.ranks,
                common_.ranks == 1 ? "rank" : "ranks", common_.transport.c_str());
    Table table({"scenario", "ISA", "routing", "tokens", "experts", "calls", "ms", "tokens/s", "GFLOP/s",
                 "of peak", "weight GB/s", "of read", "efficiency", "pairs", "idle", "tail"});
    for (const Row& row : rows_) {
      table.add({row.scenario, row.isa, row.routing, std::to_string(row.tokens), fixed(row.experts, 1),
                 std::to_string(row.calls), fixed(row.seconds * 1e3, 3),
                 fixed(static_cast<double>(row.tokens) / row.seconds, 0), fixed(row.operations * 1e-9, 1),
                 percent(row.operations / row.ceiling.linear1.rate), fixed(row.weight_bytes * 1e-9, 2),
                 percent(row.weight_bytes / row.ceiling.read),
                 row.efficiency.pairs > 0 ? percent(row.efficiency.value) : "-",
                 std::to_string(row.efficiency.pairs), or_dash(row.rest.idle, percent),
                 or_dash(row.rest.tail, percent)});
    }
    table.print();
    std::printf("\nCeilings of this machine, same run:");
    for (const ArithmeticCeiling& ceiling : ceilings_) {
      if (ceiling.rate > 0) std::printf(" %s %.1f GOP/s,", ceiling.name.c_str(), ceiling.rate * 1e-9);
    }
    std::printf(
        " read %.2f GB/s.\n"
        "ms: median of the calls, first rank in to last rank out. of peak: of the ceiling of Linear1.\n"
        "efficiency: the longer of the times for the weight bytes and for the operations, over the time "
        "taken:\nmedian of the calls, each held against reading and arithmetic measured just before and "
        "after "
        "it.\npairs: calls that count, because those passes differ by less than %.0f %%.\n"
        "idle, tail, of calls with a trace: threads' time in no stage, and time of the call from where the "
        "first\nthread has nothing more to do.\n",
        rows_.empty() ? 0.0 : rows_[0].ceiling.read * 1e-9, kSteadyPasses * 100);
  }

  static nlohmann::ordered_json measured(double value, bool known) {
    return known ? nlohmann::ordered_json(value) : nullptr;
  }

  static nlohmann::ordered_json object(const std::vector<std::pair<std::string, double>>& values) {
    nlohmann::ordered_json result;
    for (const auto& [name, value] : values) result[name] = value;
    return result;
  }

  void print_json() const {
    nlohmann::ordered_json lines = nlohmann::ordered_json::array();
    for (const Row& row : rows_) {
      lines.push_back({{"scenario", row.scenario},
                       {"isa", row.isa},
                       {"tokens", row.tokens},
                       {"experts", row.experts},
                       {"calls", row.calls},
                       {"routing", row.routing},
                       {"ms", row.seconds * 1e3},
                       {"tokens_per_second", static_cast<double>(row.tokens) / row.seconds},
                       {"gflops", row.operations * 1e-9},
                       {"weight_gbps", row.weight_bytes * 1e-9},
                       {"efficiency", measured(row.efficiency.value, row.efficiency.pairs > 0)},
                       {"pairs", row.efficiency.pairs},
                       {"run_efficiency", row.run_efficiency},
                       {"passes",
                        {{"read_gbps", measured(row.passes.bytes * 1e-9, row.passes.bytes > 0)},
                         {"gflops", measured(row.passes.operations * 1e-9, row.passes.operations > 0)}}},
                       {"idle", row.rest.idle},
                       {"tail", row.rest.tail},
                       {"stages", object(row.stages)},
                       {"kernels", row.kernels},
                       {"ceilings",
                        {{"linear1_gflops", row.ceiling.linear1.rate * 1e-9},
                         {"linear2_gflops", row.ceiling.linear2.rate * 1e-9},
                         {"read_gbps", row.ceiling.read * 1e-9}}}});
    }
    const nlohmann::ordered_json result = {{"shape", options_.shape},
                                           {"ranks", common_.ranks},
                                           {"transport", common_.transport},
                                           {"rows", std::move(lines)}};
    std::printf("%s\n", result.dump(2).c_str());
  }

  const CommonOptions& common_;
  const BenchOptions& options_;
  Progress progress_;
  ReadRange range_;
  ArithmeticCeiling ceilings_[kernel::kFamilyCount];  ///< measured when first needed
  MeasuredShape measured_;
  std::vector<Row> rows_;
};

}  // namespace

void add_bench(CLI::App& app, const CommonOptions& common, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("bench", "Measure a shape beside the ceilings of this machine");
  auto options = std::make_shared<BenchOptions>();
  add_measure_options(*command, *options, "Most timed calls of a token count; fewer when they take long");
  command->add_option("--tokens", options->tokens, "Token counts of all ranks together")
      ->type_name("LIST")
      ->capture_default_str();
  command->callback(
      [&common, &action, options] { action = [&common, options] { return Bench(common, *options).run(); }; });
}

}  // namespace megamoe::cli
