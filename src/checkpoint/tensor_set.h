// The tensors of a checkpoint: one safetensors file, or the shards that an index file names.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace megamoe::checkpoint {

class TensorSet {
 public:
  /// `path` is a safetensors file or a directory with model.safetensors.index.json or model.safetensors.
  static Result<std::unique_ptr<TensorSet>> open(const std::string& path);

  bool has(const std::string& name) const { return where_.count(name) != 0; }
  Result<TensorView> find(const std::string& name) const;
  std::vector<std::string> names() const;
  /// Whether a tensor is there whose name begins with `prefix` and goes on as `fits` has it.
  bool any_of(const std::string& prefix, const std::function<bool(std::string_view rest)>& fits) const;
  /// Path of the file that holds a tensor, or source() for an unknown name.
  const std::string& file_of(const std::string& name) const;
  /// The file that says which tensors there are: the index, or the only file.
  const std::string& source() const { return source_; }
  /// Directory the files lie in.
  const std::string& directory() const { return directory_; }

 private:
  Status open_shards(const std::string& index_path);
  void add_all(std::shared_ptr<const SafeTensors> file);

  std::string directory_, source_;
  std::vector<std::shared_ptr<const SafeTensors>> files_;
  std::map<std::string, const SafeTensors*> where_;
};

}  // namespace megamoe::checkpoint
