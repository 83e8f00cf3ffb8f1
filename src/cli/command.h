// What every subcommand shares: the common options, exit codes, how an error is shown.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "megamoe/isa.h"
#include "megamoe/status.h"
#include "megamoe/tuning.h"

namespace megamoe::cli {

enum ExitCode : int {
  kSuccess = 0,
  kFailed = 1,    ///< the tool ran and found a result that is wrong
  kBadInput = 2,  ///< arguments, files or the system did not allow the run
};

struct CommonOptions {
  std::string isa_name;
  std::optional<Isa> isa;  ///< from isa_name; absent = default_isa()
  int threads = 0;         ///< per rank; 0 = default
  int ranks = 1;
  std::string transport = "local";
  bool json = false;
  std::string tuning_file;
  std::shared_ptr<const Tuning> tuning;  ///< from tuning_file; null = block sizes that fit the caches
};

/// Adds a subcommand: declares its options and sets `action` to what runs when it is chosen.
using AddCommand = void (*)(CLI::App& app, const CommonOptions& common, std::function<int()>& action);
void add_info(CLI::App& app, const CommonOptions& common, std::function<int()>& action);
void add_limits(CLI::App& app, const CommonOptions& common, std::function<int()>& action);
void add_plan(CLI::App& app, const CommonOptions& common, std::function<int()>& action);
void add_run(CLI::App& app, const CommonOptions& common, std::function<int()>& action);
void add_check(CLI::App& app, const CommonOptions& common, std::function<int()>& action);
void add_diff(CLI::App& app, const CommonOptions& common, std::function<int()>& action);
void add_bench(CLI::App& app, const CommonOptions& common, std::function<int()>& action);
void add_ceilings(CLI::App& app, const CommonOptions& common, std::function<int()>& action);
void add_cliffs(CLI::App& app, const CommonOptions& common, std::function<int()>& action);
void add_tune(CLI::App& app, const CommonOptions& common, std::function<int()>& action);
void add_vectors(CLI::App& app, const CommonOptions& common, std::function<int()>& action);

/// Options that several commands have: --shape, which is required, and --scenario and --profile with the
/// defaults that stand in `scenarios` and `profile`.
void add_shape_option(CLI::App& command, std::string& shape);
void add_scenarios_option(CLI::App& command, std::string& scenarios);
void add_profile_option(CLI::App& command, std::string& profile);

/// What the commands that measure a shape have in common.
struct MeasureOptions {
  std::string shape;
  std::string scenario = "A16W16";
  std::string profile = "cpu";
  std::string routing = "uniform";  ///< names with commas between them
  int64_t repeat = 20;
};
/// Adds --shape, --scenario, --profile, --routing and --repeat with the defaults that stand in `options`;
/// `repeat` says what is repeated.
void add_measure_options(CLI::App& command, MeasureOptions& options, const std::string& repeat);

/// Prints "megamoe: message" to stderr and returns kBadInput.
int bad_input(const Status& status);

/// The level that calls will use: the one asked for, else the default.
Result<Isa> chosen_isa(const CommonOptions& common);

}  // namespace megamoe::cli
