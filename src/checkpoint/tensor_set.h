// The tensors of a checkpoint: one safetensors file, or the shards that an index file names.
#pragma once

#include <map>
#include <memory>
#include <string>
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
  /// Directory the files lie in.
  const std::string& directory() const { return directory_; }

 private:
  Status open_shards(const std::string& index_path);
  void add_all(std::shared_ptr<const SafeTensors> file);

  std::string directory_;
  std::vector<std::shared_ptr<const SafeTensors>> files_;
  std::map<std::string, const SafeTensors*> where_;
};

}  // namespace megamoe::checkpoint
