// megamoe info: what this machine offers and what the library makes of it.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "base/topology.h"
#include "cli/command.h"
#include "cli/formats_table.h"
#include "cli/table.h"
#include "kernel/registry.h"
#include "kernel/self_check.h"
#include "megamoe/version.h"
#include "moe/tuning.h"

namespace megamoe::cli {
namespace {

nlohmann::json block_sizes_json(const CommonOptions& common) {
  nlohmann::json sizes;
  const moe::Blocking defaults = moe::default_blocking(base::topology());
  for (const moe::BlockSize& size : moe::block_sizes()) sizes["defaults"][size.name] = defaults.*size.value;
  if (common.tuning == nullptr) return sizes;
  sizes["tuning"] = common.tuning->name();
  sizes["tuned_layers"] = common.tuning->impl().entries.size();
  return sizes;
}

/// What holds for calls with the common options.
struct InUse {
  Isa isa;
  std::string reason;
  int threads;  ///< of each rank

  const char* gemm(kernel::Family family) const { return kernel::gemm_for(family, isa).name; }
  const char* row_ops() const { return kernel::row_ops_for(isa).name; }
};

void print_json(const CommonOptions& common, const InUse& in_use) {
  const base::Topology& topology = base::topology();
  nlohmann::json levels = nlohmann::json::array();
  for (const IsaInfo& level : isa_levels()) {
    levels.push_back({{"name", level.name},
                      {"requirement", level.requirement},
                      {"runnable", level.runnable},
                      {"reason", level.reason}});
  }
  const nlohmann::json result = {
      {"version", version()},
      {"cpu", base::cpu_model()},
      {"isa", {{"chosen", isa_name(in_use.isa)}, {"reason", in_use.reason}, {"levels", levels}}},
      {"kernels",
       {{"bf16", in_use.gemm(kernel::Family::kBf16)},
        {"s8", in_use.gemm(kernel::Family::kS8)},
        {"rows", in_use.row_ops()},
        {"fault", kernel::amx_fault()}}},
      {"topology",
       {{"packages", topology.packages},
        {"numa_nodes", topology.numa_nodes},
        {"cores", topology.cores},
        {"hardware_threads", topology.hardware_threads},
        {"quota_cores", topology.quota_cores},
        {"l1d_bytes", topology.l1d_bytes},
        {"l2_bytes", topology.l2_bytes},
        {"l3_bytes", topology.l3_bytes}}},
      {"block_sizes", block_sizes_json(common)},
      {"ranks", common.ranks},
      {"threads_per_rank", in_use.threads}};
  std::printf("%s\n", result.dump(2).c_str());
}

void print_text(const CommonOptions& common, const InUse& in_use) {
  const base::Topology& topology = base::topology();
  std::printf("megamoe %s\nCPU: %s\n", version(), base::cpu_model().c_str());
  std::printf("Cores: %d, hardware threads: %d, packages: %d, NUMA nodes: %d", topology.cores,
              topology.hardware_threads, topology.packages, topology.numa_nodes);
  if (topology.quota_cores > 0) std::printf(", CPU quota: %d", topology.quota_cores);
  std::printf("\nCaches: L1d %s, L2 %s per core, L3 %s\n",
              byte_text(static_cast<double>(topology.l1d_bytes)).c_str(),
              byte_text(static_cast<double>(topology.l2_bytes)).c_str(),
              byte_text(static_cast<double>(topology.l3_bytes)).c_str());
  std::printf("Block sizes: %s (defaults for these caches)\n",
              moe::blocking_text(moe::default_blocking(topology)).c_str());
  if (common.tuning != nullptr) {
    std::printf("Tuned: %zu layers in %s\n", common.tuning->impl().entries.size(),
                common.tuning->name().c_str());
  }
  std::printf("Threads of each rank: %d (%d %s)\n\n", in_use.threads, common.ranks,
              common.ranks == 1 ? "rank" : "ranks");
  Table table({"level", "runs here", "needs"});
  for (const IsaInfo& level : isa_levels()) {
    table.add({level.name, level.runnable ? "yes" : "no: " + level.reason, level.requirement});
  }
  table.print();
  std::printf("\nIn use: %s (%s)\n", isa_name(in_use.isa), in_use.reason.c_str());
  std::printf("Kernels: %s, %s; rows: %s\n", in_use.gemm(kernel::Family::kBf16),
              in_use.gemm(kernel::Family::kS8), in_use.row_ops());
  if (!kernel::amx_fault().empty()) std::printf("Not used: %s\n", kernel::amx_fault().c_str());
}

int run_info(const CommonOptions& common) {
  auto isa = chosen_isa(common);
  if (!isa) return bad_input(isa.status());
  const int threads =
      common.threads > 0 ? common.threads : std::max(1, base::topology().usable_threads() / common.ranks);
  const InUse in_use{*isa, common.isa ? "--isa " + common.isa_name : default_isa_reason(), threads};
  common.json ? print_json(common, in_use) : print_text(common, in_use);
  return kSuccess;
}

nlohmann::ordered_json rows_of(const TextTable& table) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& cells : table.rows) {
    nlohmann::ordered_json row;
    for (size_t i = 0; i < cells.size(); ++i) row[table.columns[i]] = cells[i];
    rows.push_back(std::move(row));
  }
  return rows;
}

int show_formats(const CommonOptions& common) {
  if (common.json) {
    const nlohmann::ordered_json result = {{"formats", rows_of(format_rows())},
                                           {"rules", rows_of(rule_rows())}};
    std::printf("%s\n", result.dump(2).c_str());
  } else {
    std::printf("%s\n%s", markdown(format_rows()).c_str(), markdown(rule_rows()).c_str());
  }
  return kSuccess;
}

}  // namespace

void add_info(CLI::App& app, const CommonOptions& common, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("info", "Show CPU, instruction-set levels, topology and threads");
  auto formats = std::make_shared<bool>(false);
  command->add_flag("--formats", *formats, "Show the number formats and the quantisation rules instead");
  command->callback([&common, &action, formats] {
    action = [&common, formats] { return *formats ? show_formats(common) : run_info(common); };
  });
}

}  // namespace megamoe::cli
