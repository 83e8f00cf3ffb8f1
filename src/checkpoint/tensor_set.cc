// The tensors of a checkpoint: one safetensors file, or the shards that an index file names.
#include "checkpoint/tensor_set.h"

#include <filesystem>

#include "base/json.h"

namespace megamoe::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr std::string_view kSuffix = ".safetensors";

/// A shard must be a file of the checkpoint's own directory.
bool plain_file_name(const std::string& name) {
  return name.size() > kSuffix.size() && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos && std::string_view(name).ends_with(kSuffix);
}

}  // namespace

Result<std::unique_ptr<TensorSet>> TensorSet::open(const std::string& path) {
  std::unique_ptr<TensorSet> set(new TensorSet);
  std::error_code error;
  if (!fs::exists(path, error)) {
    return Status(Code::kInvalidArgument, path + " does not exist: expected a checkpoint directory or file");
  }
  if (!fs::is_directory(path, error)) {
    set->directory_ = fs::path(path).parent_path().string();
    if (set->directory_.empty()) set->directory_.assign(1, '.');
    auto file = SafeTensors::open(path);
    if (!file) return file.status();
    set->source_ = path;
    set->add_all(std::move(*file));
    return set;
  }
  set->directory_ = path;
  const std::string index = (fs::path(path) / kIndexName).string(),
                    single = (fs::path(path) / kSingleName).string();
  if (fs::exists(index, error)) {
    set->source_ = index;
    MEGAMOE_RETURN_IF_ERROR(set->open_shards(index));
    return set;
  }
  if (!fs::exists(single, error)) {
    return Status(Code::kInvalidArgument, path + " has neither " + kIndexName + " nor " + kSingleName +
                                              ": expected a checkpoint in safetensors format");
  }
  auto file = SafeTensors::open(single);
  if (!file) return file.status();
  set->source_ = single;
  set->add_all(std::move(*file));
  return set;
}

void TensorSet::add_all(std::shared_ptr<const SafeTensors> file) {
  for (const std::string& name : file->names()) where_.emplace(name, file.get());
  files_.push_back(std::move(file));
}

Status TensorSet::open_shards(const std::string& index_path) {
  auto index = base::parse_json_file(index_path);
  if (!index) return index.status();
  auto bad = [&](const std::string& what) { return Status(Code::kDataLoss, index_path + ": " + what); };
  if (!index->is_object() || !index->contains("weight_map") || !(*index)["weight_map"].is_object()) {
    return bad("weight_map is missing: expected an object of tensor and file names");
  }
  std::map<std::string, std::shared_ptr<const SafeTensors>> shards;
  for (const auto& [name, value] : (*index)["weight_map"].items()) {
    const std::string who = "weight_map['" + name + "']";
    if (!value.is_string() || !plain_file_name(value.get<std::string>())) {
      return bad(who + " = " + base::json_text(value) +
                 ": expected the name of a .safetensors file beside the index");
    }
    auto& shard = shards[value.get<std::string>()];
    if (shard == nullptr) {
      const std::string path = (fs::path(directory_) / value.get<std::string>()).string();
      std::error_code error;
      if (!fs::exists(path, error)) {
        return bad(who + " = " + base::json_text(value) + ": expected a file that exists beside the index");
      }
      auto file = SafeTensors::open(path);
      if (!file) return file.status();
      shard = std::move(*file);
      files_.push_back(shard);
    }
    if (!shard->has(name))
      return bad(who + " = " + base::json_text(value) + ": expected a file that holds the tensor");
    where_.emplace(name, shard.get());
  }
  return Status::ok();
}

Result<TensorView> TensorSet::find(const std::string& name) const {
  const auto found = where_.find(name);
  if (found == where_.end()) {
    return Status(Code::kInvalidArgument, source_ + ": tensor '" + name + "' is missing");
  }
  return found->second->find(name);
}

bool TensorSet::any_of(const std::string& prefix,
                       const std::function<bool(std::string_view rest)>& fits) const {
  for (auto at = where_.lower_bound(prefix); at != where_.end() && at->first.starts_with(prefix); ++at) {
    if (fits(std::string_view(at->first).substr(prefix.size()))) return true;
  }
  return false;
}

const std::string& TensorSet::file_of(const std::string& name) const {
  const auto found = where_.find(name);
  return found == where_.end() ? source_ : found->second->path();
}

std::vector<std::string> TensorSet::names() const {
  std::vector<std::string> result;
  for (const auto& [name, file] : where_) result.push_back(name);
  return result;
}

}  // namespace megamoe::checkpoint
