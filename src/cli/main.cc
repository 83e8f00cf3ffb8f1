// The megamoe tool: reads the command line and runs one subcommand.
#include <cstdio>
#include <exception>

#include "cli/command.h"
#include "cli/not_empty.h"
#include "megamoe/version.h"

namespace megamoe::cli {
namespace {

constexpr AddCommand kCommands[] = {add_info,  add_limits,   add_plan,   add_run,  add_check,  add_diff,
                                    add_bench, add_ceilings, add_cliffs, add_tune, add_vectors};
constexpr int kMostRanks = 256;
constexpr int kMostThreads = 4096;

void add_common_options(CLI::App& app, CommonOptions& common) {
  app.add_option("--isa", common.isa_name, "Instruction-set level of the kernels")
      ->check(not_empty())
      ->type_name("NAME");
  app.add_option("--threads", common.threads, "Threads of each rank; default: cores divided by ranks")
      ->type_name("N")
      ->check(CLI::Range(1, kMostThreads));
  app.add_option("--ranks", common.ranks, "Ranks of the expert-parallel group")
      ->type_name("N")
      ->check(CLI::Range(1, kMostRanks))
      ->capture_default_str();
  app.add_option("--transport", common.transport, "Ranks are threads (local) or processes (shm)")
      ->check(CLI::IsMember({"local", "shm"}))
      ->type_name("local|shm")
      ->capture_default_str();
  app.add_option("--tuning", common.tuning_file, "Block sizes from a file of megamoe tune")
      ->check(not_empty())
      ->type_name("FILE");
  app.add_flag("--json", common.json, "Print the result as JSON");
}

/// The commands, after "expected one of".
std::string command_names(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands({}))
    names += (names.empty() ? "" : ", ") + command->get_name();
  return names;
}

/// What the parser left over, or that there is no command.
Status check_command(const CLI::App& app) {
  const std::vector<std::string> rest = app.remaining();
  const std::string first = rest.empty() ? "" : rest[0];
  if (app.get_subcommands().empty() && !first.starts_with("-")) {
    return Status(Code::kInvalidArgument, (first.empty() ? "a command is missing" : "command = " + first) +
                                              ": expected one of " + command_names(app));
  }
  if (rest.empty()) return Status::ok();
  return Status(Code::kInvalidArgument, first + ": expected an option or argument that --help lists");
}

int run_tool(int argc, char** argv) {
  CLI::App app("The fused mixture-of-experts layer for CPUs", "megamoe");
  app.set_version_flag("--version", version());
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(34);
  CommonOptions common;
  add_common_options(app, common);
  std::function<int()> action;
  for (AddCommand add : kCommands) add(app, common, action);
  // Common options may stand before or after the subcommand.
  for (CLI::App* command : app.get_subcommands({})) {
    command->fallthrough()->footer("Options of every command, such as --ranks and --json: megamoe --help");
  }
  app.allow_extras();  // so that check_command() can name them
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
    return bad_input(Status(Code::kInvalidArgument, error.what()));
  }
  if (Status status = check_command(app); !status) return bad_input(status);
  if (!common.isa_name.empty()) {
    auto isa = isa_from_name(common.isa_name);
    if (!isa) return bad_input(isa.status());
    common.isa = *isa;
  }
  if (!common.tuning_file.empty()) {
    auto tuning = Tuning::read(common.tuning_file);
    if (!tuning) return bad_input(tuning.status());
    common.tuning = std::move(*tuning);
  }
  const int code = action();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return bad_input(Status(Code::kSystem, "the output could not be written"));
  }
  return code;
}

}  // namespace

void add_shape_option(CLI::App& command, std::string& shape) {
  command.add_option("--shape", shape, "hidden x intermediate x experts x top-k, such as 2048x768x128x8")
      ->required()
      ->type_name("HxIxExK");
}

void add_scenarios_option(CLI::App& command, std::string& scenarios) {
  command.add_option("--scenario", scenarios, "Scenario names with commas between them, or all")
      ->type_name("S")
      ->capture_default_str();
}

void add_profile_option(CLI::App& command, std::string& profile) {
  command.add_option("--profile", profile, "Whose limits hold, see megamoe limits")
      ->type_name("NAME")
      ->capture_default_str();
}

void add_measure_options(CLI::App& command, MeasureOptions& options, const std::string& repeat) {
  add_shape_option(command, options.shape);
  add_scenarios_option(command, options.scenario);
  add_profile_option(command, options.profile);
  command
      .add_option("--routing", options.routing,
                  "How tokens choose experts: uniform, zipf, one, with commas between them")
      ->type_name("LIST")
      ->capture_default_str();
  command.add_option("--repeat", options.repeat, repeat)
      ->check(CLI::Range(1, 1000000))
      ->type_name("N")
      ->capture_default_str();
}

int bad_input(const Status& status) {
  std::fflush(stdout);
  std::fprintf(stderr, "megamoe: %s\n", status.message().c_str());
  return kBadInput;
}

Result<Isa> chosen_isa(const CommonOptions& common) {
  if (common.isa) return *common.isa;
  return default_isa();
}

}  // namespace megamoe::cli

int main(int argc, char** argv) {
  try {
    return megamoe::cli::run_tool(argc, argv);
  } catch (const std::exception& error) {
    return megamoe::cli::bad_input(megamoe::Status(megamoe::Code::kSystem, error.what()));
  }
}
