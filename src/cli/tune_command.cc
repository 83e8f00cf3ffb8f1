// megamoe tune: measures block sizes for a shape beside the defaults, and writes those that are better.
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/measured_shape.h"
#include "cli/scenario_weights.h"
#include "cli/table.h"
#include "cli/tune_measure.h"

namespace megamoe::cli {
namespace {

// Of the time of a scenario; the rest is for the winners together.
constexpr double kShareOfSingles = 0.75;

struct TuneOptions : MeasureOptions {
  std::string tokens = "1,16,256";
  std::string output;
  double seconds = 300;
};

std::string name_of(const Candidate& candidate) {
  std::string name;
  for (const auto& [size, value] : candidate) {
    name += (name.empty() ? "" : ", ") + std::string(size->name) + " " + std::to_string(value);
  }
  return name.empty() ? "defaults again" : name;
}

/// The defaults themselves, then every candidate of the table that differs from them, alone.
std::vector<Candidate> single_candidates() {
  const moe::Blocking defaults = moe::default_blocking(base::topology());
  std::vector<Candidate> candidates = {{}};
  for (const moe::BlockSize& size : moe::block_sizes()) {
    for (const int64_t value : size.candidates) {
      if (value != defaults.*size.value) candidates.push_back({{&size, value}});
    }
  }
  return candidates;
}

class Tune {
 public:
  Tune(const CommonOptions& common, const TuneOptions& options) : common_(common), options_(options) {}

  int run() {
    auto measured = MeasuredShape::make(common_, options_, options_.tokens);
    if (!measured) return bad_input(measured.status());
    measured_ = std::move(*measured);
    // Before anything is measured: what cannot be read must not be overwritten.
    if (std::ifstream(options_.output).good()) {
      auto before = Tuning::read(options_.output);
      if (!before) return bad_input(before.status());
      entries_ = (*before)->impl().entries;
    }
    if (Status status = check_writable(); !status) return bad_input(status);
    const double end = PairTimes::now() + options_.seconds;
    const std::vector<const moe::Scenario*>& scenarios = measured_.scenarios;
    for (size_t s = 0; s < scenarios.size(); ++s) {
      const double now = PairTimes::now();
      const double until = now + (end - now) / static_cast<double>(scenarios.size() - s);
      if (Status status = tune(*scenarios[s], until); !status) return bad_input(status);
    }
    std::ofstream file(options_.output);
    file << moe::tuning_text(entries_);
    file.close();
    if (!file) return bad_input(Status(Code::kSystem, options_.output + " could not be written"));
    if (common_.json) {
      std::printf("%s\n", lines_.dump(2).c_str());
    } else {
      std::printf("Written to %s: %zu layers.\n", options_.output.c_str(), entries_.size());
    }
    return kSuccess;
  }

 private:
  /// Before minutes of measuring: the file can be opened, and is as it was.
  Status check_writable() const {
    std::error_code unknown;
    const bool is_new = !std::filesystem::exists(options_.output, unknown);
    const bool good = std::ofstream(options_.output, std::ios::app).good();
    const std::string why = good ? "" : std::strerror(errno);
    if (good && is_new) std::filesystem::remove(options_.output, unknown);
    if (good) return Status::ok();
    return Status(Code::kInvalidArgument,
                  "--output = " + options_.output + ": expected a file that can be written, " + why);
  }

  Status tune(const moe::Scenario& scenario, double until) {
    const RandomLayer layer = measured_.layer();
    auto prepared = scenario_job(measured_.job(layer), scenario, common_.ranks);
    if (!prepared) return prepared.status();
    const auto measure = [&](const std::vector<Candidate>& candidates, double share) {
      return measure_candidates(prepared->job, scenario.name, common_, candidates, options_.repeat,
                                (until - PairTimes::now()) * share);
    };
    const std::vector<Candidate> candidates = single_candidates();
    auto first = measure(candidates, kShareOfSingles);
    if (!first) return first.status();
    show(scenario, candidates, *first);
    Candidate best = winners(candidates, *first);
    if (!best.empty()) {
      // The best of many looks better than it is: all of them together prove themselves in pairs of their
      // own.
      const std::vector<Candidate> final = {{}, best};
      auto second = measure(final, 1);
      if (!second) return second.status();
      show(scenario, final, *second);
      if (!gain_of(second->measured[1], second->measured[0]).wins()) best.clear();
    }
    std::erase_if(entries_, [&](const moe::TuningEntry& entry) { return entry.key == first->key; });
    if (!best.empty()) entries_.push_back({first->key, best});
    if (!common_.json) {
      std::printf("%s: %s\n\n", scenario.name,
                  !best.empty()                   ? name_of(best).c_str()
                  : options_.repeat < kLeastPairs ? "too few pairs to call anything better than the defaults"
                  : too_noisy(first->measured[0])
                      ? "too noisy to judge: the defaults differ from themselves by more than 25 %"
                      : "nothing is better than the defaults by more than the noise");
    }
    return Status::ok();
  }

  /// Of every block size the candidate that gains most, where it wins.
  static Candidate winners(const std::vector<Candidate>& candidates, const TuneRun& run) {
    Candidate best;
    double most = 0;
    for (size_t c = 1; c < candidates.size(); ++c) {
      const Gain gain = gain_of(run.measured[c], run.measured[0]);
      if (!gain.wins()) continue;
      const bool same_size = !best.empty() && best.back().first == candidates[c][0].first;
      if (same_size && gain.value <= most) continue;
      if (same_size) best.pop_back();
      best.push_back(candidates[c][0]);
      most = gain.value;
    }
    return best;
  }

  void show(const moe::Scenario& scenario, const std::vector<Candidate>& candidates, const TuneRun& run) {
    Table table({"scenario", "routing", "tokens", "candidate", "ms", "defaults ms", "pairs", "speed", "noise",
                 "better"});
    for (size_t c = 0; c < candidates.size(); ++c) {
      const Gain gain = gain_of(run.measured[c], run.measured[0]);
      const bool better = c > 0 && gain.wins();
      for (size_t b = 0; b < measured_.cells.size(); ++b) {
        const MeasuredCell& cell = measured_.cells[b];
        const Pairs& pairs = run.measured[c][b];
        table.add({scenario.name, cell.routing, std::to_string(cell.count), name_of(candidates[c]),
                   fixed(pairs.median() * 1e3, 3), fixed(pairs.fallback_median() * 1e3, 3),
                   std::to_string(pairs.candidate.size()), percent(1 / pairs.ratio()),
                   noise_text(pairs.noise()), better ? "yes" : "no"});
        lines_.push_back({{"scenario", scenario.name},
                          {"routing", cell.routing},
                          {"tokens", cell.count},
                          {"candidate", name_of(candidates[c])},
                          {"ms", pairs.median() * 1e3},
                          {"defaults_ms", pairs.fallback_median() * 1e3},
                          {"pairs", pairs.candidate.size()},
                          {"speed", 1 / pairs.ratio()},
                          {"noise", std::expm1(pairs.noise())},
                          {"better", better}});
      }
    }
    if (common_.json) return;
    table.print();
    std::printf("\n");
  }

  const CommonOptions& common_;
  const TuneOptions& options_;
  MeasuredShape measured_;
  std::vector<moe::TuningEntry> entries_;
  nlohmann::ordered_json lines_ = nlohmann::ordered_json::array();
};

}  // namespace

void add_tune(CLI::App& app, const CommonOptions& common, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("tune", "Measure block sizes for a shape and write the better ones");
  auto options = std::make_shared<TuneOptions>();
  add_measure_options(*command, *options, "Most pairs of calls of a candidate and a token count");
  command->add_option("--output", options->output, "File to write; other layers in it stay")
      ->required()
      ->type_name("FILE");
  command->add_option("--tokens", options->tokens, "Token counts of all ranks together")
      ->type_name("LIST")
      ->capture_default_str();
  command
      ->add_option("--seconds", options->seconds,
                   "Time for all scenarios; afterwards fewer pairs, down to " + std::to_string(kLeastPairs))
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("S")
      ->capture_default_str();
  command->callback(
      [&common, &action, options] { action = [&common, options] { return Tune(common, *options).run(); }; });
}

}  // namespace megamoe::cli
