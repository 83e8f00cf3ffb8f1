// Reading and writing of test cases.
#include "cli/case_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "format/fractal.h"

namespace megamoe::cli {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr uintmax_t kLargestDescription = uintmax_t{64} << 20;
constexpr int64_t kMostRanks = 4096;

Status malformed(const std::string& where, const std::string& what) {
  return Status(Code::kDataLoss, where + ": " + what);
}

Result<std::vector<std::byte>> read_file(const fs::path& path, std::optional<int64_t> expected_bytes) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return Status(Code::kSystem, path.string() + ": expected a file");
  const uintmax_t size = fs::file_size(path, error);
  if (error) return Status(Code::kSystem, path.string() + ": " + error.message());
  if (expected_bytes && size != static_cast<uintmax_t>(*expected_bytes)) {
    return malformed(path.string(),
                     "has " + std::to_string(size) + " bytes: expected " + std::to_string(*expected_bytes));
  }
  if (!expected_bytes && size > kLargestDescription) {
    return malformed(path.string(), "has " + std::to_string(size) + " bytes: too many for a description");
  }
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  std::ifstream stream(path, std::ios::binary);
  stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!stream) return Status(Code::kSystem, path.string() + ": cannot be read");
  return bytes;
}

// Files of a case lie beside its description and nowhere else.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
}

Result<std::string> get_text(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string())
    return malformed(where, std::string(key) + ": expected a text");
  return found->get<std::string>();
}

Result<std::string> get_text_or(const json& object, const char* key, const std::string& fallback,
                                const std::string& where) {
  return object.contains(key) ? get_text(object, key, where) : Result<std::string>(fallback);
}

Result<int64_t> get_integer(const json& object, const char* key, int64_t fallback, int64_t least,
                            int64_t most, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) return fallback;
  const bool fits = found->is_number_integer() &&
                    !(found->is_number_unsigned() &&
                      found->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (fits && found->get<int64_t>() >= least && found->get<int64_t>() <= most) return found->get<int64_t>();
  return malformed(where, std::string(key) + ": expected an integer in [" + std::to_string(least) + ", " +
                              std::to_string(most) + "]");
}

Result<std::vector<int64_t>> get_shape(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  const std::string expected =
      std::string(key) + ": expected up to " + std::to_string(kMaxDims) + " extents >= 0";
  if (found == object.end() || !found->is_array() || found->size() > kMaxDims)
    return malformed(where, expected);
  std::vector<int64_t> shape;
  for (const json& extent : *found) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
      return malformed(where, expected);
    }
    shape.push_back(extent.get<int64_t>());
  }
  return shape;
}

Result<Tolerance> get_tolerance(const json& object, const std::string& where) {
  const auto found = object.find("compare");
  Tolerance tolerance;
  if (found != object.end() && found->is_string() && found->get<std::string>() == "exact") return tolerance;
  if (found == object.end() || !found->is_object() || !found->contains("rel_fro") ||
      !found->contains("max_abs") || !(*found)["rel_fro"].is_number() || !(*found)["max_abs"].is_number()) {
    return malformed(where, "compare: expected \"exact\" or numbers rel_fro and max_abs");
  }
  tolerance.exact = false;
  tolerance.rel_fro = (*found)["rel_fro"].get<double>();
  tolerance.max_abs = (*found)["max_abs"].get<double>();
  return tolerance;
}

Result<Layout> get_layout(const json& object, const std::string& where) {
  Result<std::string> name = get_text_or(object, "format", "ND", where);
  if (!name) return name.status();
  if (Result<Layout> layout = layout_from_name(*name)) return layout;
  return malformed(where, "format: expected ND, FRACTAL_NZ or FRACTAL_NZ_C0_32");
}

// The storage must be what shape and layout ask for: everyone who reads the tensor relies on it.
Status check_storage(const CaseTensor& tensor, const std::string& where) {
  std::vector<int64_t> wanted = tensor.shape;
  if (tensor.layout != Layout::kNd) {
    const int64_t c0 = format::fractal_c0(tensor.dtype, tensor.layout);
    if (c0 == 0 || wanted.size() < 2) {
      return malformed(where, std::string("format: ") + layout_name(tensor.layout) + " is not defined for " +
                                  dtype_name(tensor.dtype) + " of " + std::to_string(wanted.size()) +
                                  " dimensions");
    }
    const format::Fractal fractal{wanted[wanted.size() - 2], wanted.back(), c0};
    wanted.resize(wanted.size() - 2);
    for (int64_t extent : fractal.storage_shape()) wanted.push_back(extent);
  }
  if (dtype_bits(tensor.dtype) == 4 && (wanted.empty() || wanted.back() % 2 != 0)) {
    return malformed(where,
                     "shape: expected an even last extent for " + std::string(dtype_name(tensor.dtype)));
  }
  if (wanted == tensor.storage_shape) return Status::ok();
  return malformed(where, "storage_shape: does not fit shape and format");
}

Result<CaseTensor> load_tensor(const fs::path& directory, const std::string& key, const json& object,
                               bool expected, int ranks, const std::string& case_where) {
  const std::string where = case_where + ": " + key;
  if (!object.is_object()) return malformed(where, "expected an object");
  CaseTensor tensor;
  tensor.key = key;
  Result<std::string> arg = get_text_or(object, "arg", key, where);
  if (!arg) return arg.status();
  tensor.arg = *arg;
  Result<int64_t> rank = get_integer(object, "rank", 0, 0, ranks - 1, where);
  if (!rank) return rank.status();
  tensor.rank = static_cast<int>(*rank);

  Result<std::string> dtype = get_text(object, "dtype", where);
  if (!dtype) return dtype.status();
  tensor.dtype = dtype_from_name(*dtype);
  if (tensor.dtype == DType::kUndefined) return malformed(where, "dtype: \"" + *dtype + "\" is no type");
  Result<Layout> layout = get_layout(object, where);
  if (!layout) return layout.status();
  tensor.layout = *layout;
  Result<std::vector<int64_t>> shape = get_shape(object, "shape", where);
  if (!shape) return shape.status();
  tensor.shape = *shape;
  tensor.storage_shape = *shape;
  if (object.contains("storage_shape") || tensor.layout != Layout::kNd) {
    Result<std::vector<int64_t>> storage = get_shape(object, "storage_shape", where);
    if (!storage) return storage.status();
    tensor.storage_shape = *storage;
  }
  MEGAMOE_RETURN_IF_ERROR(check_storage(tensor, where));

  Result<std::string> file = get_text(object, "file", where);
  if (!file) return file.status();
  tensor.file = *file;
  if (!is_plain_file_name(tensor.file)) return malformed(where, "file: expected a name without a path");
  if (expected) {
    Result<Tolerance> tolerance = get_tolerance(object, where);
    if (!tolerance) return tolerance.status();
    tensor.tolerance = *tolerance;
  }
  Result<int64_t> size = storage_bytes(tensor.dtype, tensor.storage_shape);
  if (!size) return malformed(where, size.status().message());
  Result<std::vector<std::byte>> bytes = read_file(directory / tensor.file, *size);
  if (!bytes) return bytes.status();
  tensor.bytes = std::move(bytes).value();
  return tensor;
}

Status load_tensors(const fs::path& directory, const json& description, const char* key, bool expected,
                    int ranks, const std::string& where, std::vector<CaseTensor>& tensors) {
  const auto found = description.find(key);
  if (found == description.end() || !found->is_object()) {
    return malformed(where, std::string(key) + ": expected an object");
  }
  for (const auto& [name, object] : found->items()) {
    Result<CaseTensor> tensor = load_tensor(directory, name, object, expected, ranks, where);
    if (!tensor) return tensor.status();
    tensors.push_back(std::move(tensor).value());
  }
  return Status::ok();
}

Result<Attribute> get_attribute(const json& value, const std::string& name, const std::string& where) {
  if (value.is_null()) return Attribute{};
  if (value.is_boolean()) return Attribute{value.get<bool>()};
  if (value.is_number_integer()) {
    if (value.is_number_unsigned() &&
        value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return malformed(where, "attrs." + name + ": expected a number that 64 bits hold");
    }
    return Attribute{value.get<int64_t>()};
  }
  if (value.is_number()) return Attribute{value.get<double>()};
  if (value.is_string()) return Attribute{value.get<std::string>()};
  if (value.is_array() &&
      std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_number(); })) {
    return Attribute{value.get<std::vector<double>>()};
  }
  return malformed(where, "attrs." + name + ": expected a number, text, flag or list of numbers");
}

Result<Case> parse_case(const fs::path& directory) {
  const fs::path path = directory / "case.json";
  const std::string where = path.string();
  Result<std::vector<std::byte>> file = read_file(path, std::nullopt);
  if (!file) return file.status();
  const char* begin = reinterpret_cast<const char*>(file->data());
  const json description = json::parse(begin, begin + file->size(), nullptr, false);
  if (!description.is_object()) return malformed(where, "expected a JSON object");

  Case result;
  result.name = fs::weakly_canonical(directory).filename().string();
  Result<std::string> op = get_text(description, "op", where);
  if (!op) return op.status();
  result.op = *op;
  Result<std::string> note = get_text_or(description, "note", "", where);
  if (!note) return note.status();
  result.note = *note;
  Result<int64_t> ranks = get_integer(description, "ranks", 1, 1, kMostRanks, where);
  if (!ranks) return ranks.status();
  result.ranks = static_cast<int>(*ranks);
  const json attrs = description.value("attrs", json::object());
  if (!attrs.is_object()) return malformed(where, "attrs: expected an object");
  for (const auto& [name, value] : attrs.items()) {
    Result<Attribute> attribute = get_attribute(value, name, where);
    if (!attribute) return attribute.status();
    result.attrs[name] = std::move(attribute).value();
  }
  MEGAMOE_RETURN_IF_ERROR(
      load_tensors(directory, description, "inputs", false, result.ranks, where, result.inputs));
  if (!description.contains("expect_error")) {
    MEGAMOE_RETURN_IF_ERROR(
        load_tensors(directory, description, "expect", true, result.ranks, where, result.expected));
    return result;
  }
  Result<std::string> error = get_text(description, "expect_error", where);
  Result<std::string> argument = get_text(description, "error_arg", where);
  if (!error) return error.status();
  if (!argument) return argument.status();
  if (error->empty()) return malformed(where, "expect_error: expected a text that is not empty");
  result.expect_error = *error;
  result.error_arg = *argument;
  return result;
}

// Value of an attribute as T; the fallback where it is absent or null.
template <class T>
Result<T> attribute(const Case& test, const std::string& attr, const T& fallback, const char* expected) {
  const auto found = test.attrs.find(attr);
  if (found == test.attrs.end() || std::holds_alternative<std::monostate>(found->second)) return fallback;
  if (const T* value = std::get_if<T>(&found->second)) return *value;
  return malformed(test.name, "attrs." + attr + ": expected " + expected);
}

}  // namespace

TensorView CaseTensor::view() const {
  TensorView view;
  view.data = bytes.data();
  view.dtype = dtype;
  view.layout = layout;
  view.dims = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape);
  view.set_contiguous();
  return view;
}

const CaseTensor* Case::input(const std::string& arg, int rank) const {
  const auto found = std::find_if(inputs.begin(), inputs.end(),
                                  [&](const CaseTensor& t) { return t.arg == arg && t.rank == rank; });
  return found == inputs.end() ? nullptr : &*found;
}

Result<int64_t> Case::integer(const std::string& attr, int64_t fallback) const {
  return attribute<int64_t>(*this, attr, fallback, "an integer");
}

Result<double> Case::number(const std::string& attr, double fallback) const {
  const auto found = attrs.find(attr);
  if (found != attrs.end() && std::holds_alternative<int64_t>(found->second)) {
    return static_cast<double>(std::get<int64_t>(found->second));
  }
  return attribute<double>(*this, attr, fallback, "a number");
}

Result<bool> Case::flag(const std::string& attr, bool fallback) const {
  return attribute<bool>(*this, attr, fallback, "true or false");
}

Result<std::string> Case::text(const std::string& attr, const std::string& fallback) const {
  return attribute<std::string>(*this, attr, fallback, "a text");
}

Result<std::vector<double>> Case::numbers(const std::string& attr) const {
  return attribute<std::vector<double>>(*this, attr, {}, "a list of numbers");
}

Result<Case> load_case(const std::string& directory) {
  try {
    return parse_case(directory);
  } catch (const std::exception& error) {
    return malformed(directory, error.what());
  }
}

Result<int64_t> storage_bytes(DType dtype, const std::vector<int64_t>& storage_shape) {
  // Empty extents count as 1 for the bound, so that strides of the other extents cannot overflow either.
  int64_t bound = 1;
  int64_t rows = 1;
  for (size_t i = 0; i < storage_shape.size(); ++i) {
    if (__builtin_mul_overflow(bound, std::max<int64_t>(storage_shape[i], 1), &bound) ||
        bound > std::numeric_limits<int64_t>::max() / 64) {
      return Status(Code::kInvalidArgument, "shape: too many elements");
    }
    if (i + 1 < storage_shape.size()) rows *= storage_shape[i];
  }
  const int64_t last = storage_shape.empty() ? 1 : storage_shape.back();
  return rows * ((last * dtype_bits(dtype) + 7) / 8);
}

Status write_tensor(const std::string& directory, const CaseTensor& tensor,
                    const std::vector<std::byte>& bytes) {
  if (!is_plain_file_name(tensor.file)) return malformed(tensor.key, "file: expected a name without a path");
  const fs::path path = fs::path(directory) / tensor.file;
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  if (!stream) return Status(Code::kSystem, path.string() + ": cannot be written");
  return Status::ok();
}

}  // namespace megamoe::cli
