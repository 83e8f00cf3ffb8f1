// One safetensors file, mapped: names, checked offsets, views of the tensors. And the writer of such files.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::checkpoint {

class SafeTensors {
 public:
  /// What the header says of one tensor.
  struct Entry {
    std::string type;
    DType dtype = DType::kUndefined;
    std::vector<int64_t> shape;
    int64_t begin = 0, end = 0;  ///< bytes from the start of the data
  };

  /// Maps the file and checks every entry of its header against the file's size. A malformed file is
  /// kDataLoss. The file must not shrink while it is mapped.
  static Result<std::shared_ptr<const SafeTensors>> open(const std::string& path);
  ~SafeTensors();
  SafeTensors(const SafeTensors&) = delete;
  SafeTensors& operator=(const SafeTensors&) = delete;

  const std::string& path() const { return path_; }
  bool has(const std::string& name) const { return entries_.count(name) != 0; }
  std::vector<std::string> names() const;
  /// View of a tensor, valid as long as this object. An error for an unknown name, or for a type or a number
  /// of dimensions that TensorView cannot hold.
  Result<TensorView> find(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  explicit SafeTensors(std::string path) : path_(std::move(path)) {}
  Status map();
  Status read_header();
  Status check_offsets() const;
  Status bad(const std::string& what) const;

  std::string path_;
  const std::byte* file_ = nullptr;
  size_t file_bytes_ = 0;
  const std::byte* data_ = nullptr;
  int64_t data_bytes_ = 0;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// Writes contiguous ND tensors, through a temporary file so that a failure leaves no half file under `path`.
Status write_safetensors(const std::string& path,
                         const std::vector<std::pair<std::string, TensorView>>& tensors,
                         const std::map<std::string, std::string>& metadata = {});

/// Name of a type in safetensors files ("BF16"), or null where the format has none.
const char* safetensors_type(DType dtype);

/// One row of the table of types a safetensors file may hold.
struct SafeTensorsType {
  const char* name;
  int bits;
  DType dtype;  ///< kUndefined: valid in a file, not readable as a TensorView
};
const SafeTensorsType* find_safetensors_type(const std::string& name);

}  // namespace megamoe::checkpoint
