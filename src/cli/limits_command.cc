// megamoe limits: what a profile allows, as docs/limits.md has it.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/formats_table.h"
#include "moe/limits.h"

namespace megamoe::cli {
namespace {

int run_limits(const CommonOptions& common, const std::string& name) {
  auto profile = moe::find_profile(name);
  if (!profile) return bad_input(profile.status());
  const std::vector<moe::LimitText> limits = moe::limit_texts(*profile);
  if (common.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const moe::LimitText& limit : limits) {
      rows.push_back({{"parameter", limit.parameter}, {"allowed", limit.allowed}, {"when", limit.when}});
      if (!limit.argument.empty()) rows.back()["argument"] = limit.argument;
    }
    const nlohmann::ordered_json result = {
        {"profile", name}, {"summary", moe::profile_info(*profile).summary}, {"limits", std::move(rows)}};
    std::printf("%s\n", result.dump(2).c_str());
    return kSuccess;
  }
  TextTable table{{"parameter", "allowed", "when"}, {}};
  const bool own_names = !limits.front().argument.empty();
  if (own_names) table.columns.push_back("argument of " + name);
  for (const moe::LimitText& limit : limits) {
    table.rows.push_back({limit.parameter, limit.allowed, limit.when.empty() ? "-" : limit.when});
    if (own_names) table.rows.back().push_back(limit.argument);
  }
  std::printf("%s", markdown(table).c_str());
  return kSuccess;
}

}  // namespace

void add_limits(CLI::App& app, const CommonOptions& common, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("limits", "Show what a profile allows");
  auto profile = std::make_shared<std::string>();
  std::string names;
  for (const moe::ProfileInfo& info : moe::profiles())
    names += (names.empty() ? "" : ", ") + std::string(info.name);
  command->add_option("profile", *profile, "One of " + names)->required()->type_name("PROFILE");
  command->callback(
      [&common, &action, profile] { action = [&common, profile] { return run_limits(common, *profile); }; });
}

}  // namespace megamoe::cli
