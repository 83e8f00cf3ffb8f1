// Dumps: every stage of a call in files, one for each scenario and rank.
#include "cli/dump.h"

#include <algorithm>
#include <filesystem>

#include "cli/stage_compare.h"
#include "megamoe/quantise.h"

namespace megamoe::cli {
namespace {

namespace fs = std::filesystem;

std::string rank_file(const std::string& folder, const std::string& scenario, int rank) {
  return (fs::path(folder) / scenario / ("rank" + std::to_string(rank) + ".safetensors")).string();
}

/// Tensors of a file and the memory of those that had to be made.
class Tensors {
 public:
  /// Values (rows, columns) as elements of a type that holds each of them.
  Status add(const char* name, const TensorView& values, int64_t rows, DType type) {
    const int64_t columns = values.shape[0] / rows;
    TensorView matrix(values.data, values.dtype, {rows, columns});
    if (values.dtype != type) {
      memory_.emplace_back(static_cast<size_t>((rows * columns * dtype_bits(type) + 7) / 8));
      const TensorRef made(memory_.back().data(), type, {rows, columns});
      MEGAMOE_RETURN_IF_ERROR(cast(matrix, made, /*saturate=*/false));
      matrix = view(made);
    }
    list_.emplace_back(name, matrix);
    return Status::ok();
  }
  void add(const char* name, const TensorView& tensor) { list_.emplace_back(name, tensor); }
  const std::vector<std::pair<std::string, TensorView>>& list() const { return list_; }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::pair<std::string, TensorView>> list_;
};

}  // namespace

Status write_dump(const std::string& folder, const moe::Scenario& scenario, int rank,
                  const RankValues& values) {
  Tensors tensors;
  for (const StageInfo& stage : stage_table()) {
    const TensorView stage_values = stage.values(values.stages);
    if (stage_values.shape[0] == 0) continue;
    MEGAMOE_RETURN_IF_ERROR(
        tensors.add(stage.name, stage_values, stage_rows(stage, values.stages), stage.type(scenario)));
  }
  tensors.add(stage_name(kCountsStage), values.expert_token_nums);
  tensors.add(stage_name(kOutputStage), values.y);
  const std::string path = rank_file(folder, scenario.name, rank);
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return Status(Code::kSystem, path + " cannot be written: " + error.message());
  return checkpoint::write_safetensors(path, tensors.list());
}

Result<std::vector<ScenarioDump>> read_dump(const std::string& folder) {
  std::vector<ScenarioDump> dumps;
  for (const moe::Scenario& scenario : moe::scenarios()) {
    ScenarioDump dump{scenario.name, {}};
    std::error_code error;
    while (fs::exists(rank_file(folder, scenario.name, static_cast<int>(dump.ranks.size())), error)) {
      auto file = checkpoint::SafeTensors::open(
          rank_file(folder, scenario.name, static_cast<int>(dump.ranks.size())));
      if (!file) return file.status();
      dump.ranks.push_back(std::move(*file));
    }
    if (!dump.ranks.empty()) dumps.push_back(std::move(dump));
  }
  if (!dumps.empty()) return dumps;
  return Status(Code::kInvalidArgument,
                folder + " holds no dump: expected files such as " + rank_file(folder, "A16W16", 0));
}

}  // namespace megamoe::cli
