// Test cases on disk: a directory with case.json and one raw file per tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::cli {

/// How far a result may be from what is expected.
struct Tolerance {
  bool exact = true;  ///< bit for bit, any NaN equal to any NaN
  double rel_fro = 0;
  double max_abs = 0;
};

/// A tensor of a case with its memory.
struct CaseTensor {
  std::string key;   ///< "x.r0"
  std::string arg;   ///< "x"
  int rank = 0;      ///< 0 where the case has no ranks
  std::string file;  ///< file name inside the case's directory
  DType dtype = DType::kUndefined;
  Layout layout = Layout::kNd;
  std::vector<int64_t> shape;          ///< logical
  std::vector<int64_t> storage_shape;  ///< as in the file; equal to shape for plain layout
  std::vector<std::byte> bytes;
  Tolerance tolerance;  ///< expected tensors only

  TensorView view() const;
};

/// An attribute: nothing (null), or a value of its JSON type.
using Attribute = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<double>>;

struct Case {
  std::string name;  ///< name of the directory
  std::string op;
  int ranks = 1;
  std::string note;
  std::map<std::string, Attribute> attrs;
  std::vector<CaseTensor> inputs;    ///< in order of their keys
  std::vector<CaseTensor> expected;  ///< in order of their keys; empty when an error is expected
  std::string expect_error;          ///< what is wrong, in words; empty when results are expected
  std::string error_arg;             ///< the argument that the message must name

  bool expects_error() const { return !expect_error.empty(); }
  /// Input of an argument at a rank, or null.
  const CaseTensor* input(const std::string& arg, int rank = 0) const;

  /// Attribute values; the fallback where the attribute is absent or null, an error where its type is another
  /// one.
  Result<int64_t> integer(const std::string& attr, int64_t fallback) const;
  Result<double> number(const std::string& attr, double fallback) const;
  Result<bool> flag(const std::string& attr, bool fallback) const;
  Result<std::string> text(const std::string& attr, const std::string& fallback) const;
  Result<std::vector<double>> numbers(const std::string& attr) const;
};

/// What an operator wrote, in the order of Case::expected. Without expected tensors it is empty.
using CaseOutputs = std::vector<std::vector<std::byte>>;

/// Reads a case with all its tensors. Malformed files are errors that name file and key.
Result<Case> load_case(const std::string& directory);

/// Bytes of a tensor in its file; an error for shapes that no memory can hold.
Result<int64_t> storage_bytes(DType dtype, const std::vector<int64_t>& storage_shape);

/// Writes `bytes` as the file that the case has for this tensor.
Status write_tensor(const std::string& directory, const CaseTensor& tensor,
                    const std::vector<std::byte>& bytes);

}  // namespace megamoe::cli
