// megamoe ceilings: what this machine can do at best, for one thread and for all.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/topology.h"
#include "cli/ceilings.h"
#include "cli/command.h"
#include "cli/table.h"

namespace megamoe::cli {
namespace {

struct Line {
  std::string what, unit;
  double one = 0, all = 0;  ///< operations or bytes per second
};

int run_ceilings(const CommonOptions& common) {
  const int threads = common.threads > 0 ? common.threads : std::max(1, base::topology().usable_threads());
  std::vector<Line> lines;
  for (const kernel::Peak* peak : kernel::all_peaks()) {
    if (!kernel::runnable(*peak)) continue;
    lines.push_back({peak->instruction, "GOP/s", peak_rate(*peak, 1), peak_rate(*peak, threads)});
  }
  for (const bool huge : {false, true}) {
    auto range = ReadRange::make(threads, huge);
    if (!range) return bad_input(range.status());
    lines.push_back({huge ? "read, huge pages" : "read, 4 KiB pages", "GB/s", range->ceiling(1),
                     range->ceiling(threads)});
  }
  if (common.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Line& line : lines) {
      rows.push_back(
          {{"what", line.what}, {"unit", line.unit}, {"one_thread", line.one}, {"all_threads", line.all}});
    }
    const nlohmann::ordered_json result = {{"threads", threads}, {"rows", std::move(rows)}};
    std::printf("%s\n", result.dump(2).c_str());
    return kSuccess;
  }
  Table table({"ceiling", "unit", "1 thread", std::to_string(threads) + " threads"});
  for (const Line& line : lines) {
    table.add({line.what, line.unit, fixed(line.one * 1e-9, 1), fixed(line.all * 1e-9, 1)});
  }
  table.print();
  return kSuccess;
}

}  // namespace

void add_ceilings(CLI::App& app, const CommonOptions& common, std::function<int()>& action) {
  CLI::App* command =
      app.add_subcommand("ceilings", "Measure what this machine can do at best: arithmetic and reading");
  command->callback([&common, &action] { action = [&common] { return run_ceilings(common); }; });
}

}  // namespace megamoe::cli
