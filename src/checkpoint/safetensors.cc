// Reads the header of a safetensors file, trusting nothing in it.
#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/json.h"

namespace megamoe::checkpoint {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format

constexpr SafeTensorsType kTypes[] = {
    {"F32", 32, DType::kFloat32},       {"BF16", 16, DType::kBFloat16},
    {"F16", 16, DType::kFloat16},       {"I8", 8, DType::kInt8},
    {"U8", 8, DType::kUInt8},           {"BOOL", 8, DType::kUInt8},
    {"I32", 32, DType::kInt32},         {"I64", 64, DType::kInt64},
    {"U64", 64, DType::kUInt64},        {"F8_E4M3", 8, DType::kFloat8E4M3},
    {"F8_E5M2", 8, DType::kFloat8E5M2}, {"F8_E8M0", 8, DType::kFloat8E8M0},
    {"F4", 4, DType::kFloat4E2M1},      {"F64", 64, DType::kUndefined},
    {"I16", 16, DType::kUndefined},     {"U16", 16, DType::kUndefined},
    {"U32", 32, DType::kUndefined},     {"C64", 64, DType::kUndefined},
    {"F6_E2M3", 6, DType::kUndefined},  {"F6_E3M2", 6, DType::kUndefined},
};

std::string shape_text(const std::vector<int64_t>& shape) {
  return base::json_text(nlohmann::json(shape));
}

/// Sizes and bytes of a tensor; where they are wrong, what was expected.
std::string read_shape(const nlohmann::json& given, const SafeTensorsType& type, std::vector<int64_t>& shape,
                       int64_t& bytes) {
  if (!given.is_array()) return "a list of sizes";
  int64_t elements = 1;
  bool overflow = false, empty = false;
  for (const auto& extent : given) {
    int64_t size = 0;
    if (!base::to_size(extent, size)) return "sizes from 0 to 2^63 - 1";
    shape.push_back(size);
    empty |= size == 0;
    overflow |= __builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements);
  }
  int64_t bits = 0;
  if (overflow || __builtin_mul_overflow(elements, type.bits, &bits)) return "a size below 2^63 bits";
  if (empty) bits = 0;
  if (bits % 8 != 0) return std::string("whole bytes of ") + type.name;
  bytes = bits / 8;
  return {};
}

// What the functions below find wrong is told without the path of the file.
Status bad(const std::string& what) {
  return Status(Code::kDataLoss, what);
}

Status read_metadata(const nlohmann::json& value, std::map<std::string, std::string>& metadata) {
  if (!value.is_object())
    return bad("__metadata__ = " + base::json_text(value) + ": expected an object of strings");
  for (const auto& [key, entry] : value.items()) {
    if (!entry.is_string()) {
      return bad("__metadata__['" + key + "'] = " + base::json_text(entry) + ": expected a string");
    }
    metadata[key] = entry.get<std::string>();
  }
  return Status::ok();
}

/// The entry of a tensor in a file with so many bytes of data.
Result<SafeTensors::Entry> read_entry(const std::string& name, const nlohmann::json& value,
                                      int64_t data_bytes) {
  const std::string who = "tensor '" + name + "': ";
  if (!value.is_object()) return bad(who + base::json_text(value) + ": expected an object");
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(field)) return bad(who + field + " is missing");
  }
  SafeTensors::Entry entry;
  const auto& dtype = value["dtype"];
  const SafeTensorsType* type = dtype.is_string() ? find_safetensors_type(dtype.get<std::string>()) : nullptr;
  if (type == nullptr)
    return bad(who + "dtype = " + base::json_text(dtype) + ": expected a type of the safetensors format");
  entry.type = type->name;
  entry.dtype = type->dtype;
  const auto& shape = value["shape"];
  int64_t bytes = 0;
  if (const std::string expected = read_shape(shape, *type, entry.shape, bytes); !expected.empty())
    return bad(who + "shape = " + base::json_text(shape) + ": expected " + expected);

  const auto& offsets = value["data_offsets"];
  const auto bad_offsets = [&](const std::string& expected) {
    return bad(who + "data_offsets = " + base::json_text(offsets) + ": expected " + expected);
  };
  if (!offsets.is_array() || offsets.size() != 2 || !base::to_size(offsets[0], entry.begin) ||
      !base::to_size(offsets[1], entry.end) || entry.begin > entry.end) {
    return bad_offsets("[begin, end] with 0 <= begin <= end");
  }
  if (entry.end > data_bytes) {
    return bad_offsets("an end of at most " + std::to_string(data_bytes) +
                       ", the bytes the file has; it may be truncated");
  }
  if (entry.end - entry.begin != bytes) {
    return bad_offsets(std::to_string(bytes) + " bytes for shape " + shape_text(entry.shape) + " of " +
                       type->name);
  }
  return entry;
}

}  // namespace

const SafeTensorsType* find_safetensors_type(const std::string& name) {
  const auto* row =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& t) { return name == t.name; });
  return row == std::end(kTypes) ? nullptr : row;
}

const char* safetensors_type(DType dtype) {
  if (dtype == DType::kUndefined) return nullptr;
  for (const SafeTensorsType& row : kTypes) {
    if (row.dtype == dtype) return row.name;
  }
  return nullptr;
}

Status SafeTensors::bad(const std::string& what) const {
  return Status(Code::kDataLoss, path_ + ": " + what);
}

Result<std::shared_ptr<const SafeTensors>> SafeTensors::open(const std::string& path) {
  std::shared_ptr<SafeTensors> file(new SafeTensors(path));
  MEGAMOE_RETURN_IF_ERROR(file->map());
  MEGAMOE_RETURN_IF_ERROR(file->read_header());
  MEGAMOE_RETURN_IF_ERROR(file->check_offsets());
  return std::shared_ptr<const SafeTensors>(std::move(file));
}

SafeTensors::~SafeTensors() {
  if (file_ != nullptr) munmap(const_cast<std::byte*>(file_), file_bytes_);
}

Status SafeTensors::map() {
  // Without O_NONBLOCK the opening of a pipe would wait for a writer.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return Status(Code::kInvalidArgument, path_ + " cannot be opened: " + std::strerror(errno));
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return Status(Code::kInvalidArgument, path_ + " is not a regular file: expected a safetensors file");
  }
  file_bytes_ = static_cast<size_t>(info.st_size);
  if (file_bytes_ < kLengthBytes) {
    close(fd);
    return bad("the file has " + std::to_string(file_bytes_) +
               " bytes: expected at least 8, the header length");
  }
  void* address = mmap(nullptr, file_bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  close(fd);
  if (address == MAP_FAILED) {
    return Status(Code::kSystem, path_ + " cannot be mapped: " + std::strerror(error));
  }
  file_ = static_cast<const std::byte*>(address);
  return Status::ok();
}

Status SafeTensors::read_header() {
  uint64_t length = 0;
  std::memcpy(&length, file_, kLengthBytes);
  const uint64_t room = file_bytes_ - kLengthBytes;
  if (length > std::min(room, kMaxHeaderBytes)) {
    return bad("header length = " + std::to_string(length) + ": expected at most " +
               std::to_string(std::min(room, kMaxHeaderBytes)));
  }
  const std::string_view text(reinterpret_cast<const char*>(file_ + kLengthBytes), length);
  data_ = file_ + kLengthBytes + length;
  data_bytes_ = static_cast<int64_t>(room - length);
  auto header = base::parse_json(text, path_ + ": header");
  if (!header) return header.status();
  if (!header->is_object())
    return bad("header is " + std::string(header->type_name()) + ": expected an object");

  for (const auto& [name, value] : header->items()) {
    if (name == "__metadata__") {
      if (Status status = read_metadata(value, metadata_); !status) return bad(status.message());
      continue;
    }
    auto entry = read_entry(name, value, data_bytes_);
    if (!entry) return bad(entry.status().message());
    entries_.emplace(name, std::move(*entry));
  }
  return Status::ok();
}

Status SafeTensors::check_offsets() const {
  std::vector<std::pair<const std::string*, const Entry*>> order;
  for (const auto& [name, entry] : entries_) order.emplace_back(&name, &entry);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  int64_t end = 0;
  const std::string* before = nullptr;
  for (const auto& [name, entry] : order) {
    if (entry->begin < end) {
      return bad("tensor '" + *name + "': data_offsets begin at " + std::to_string(entry->begin) +
                 ": expected " + std::to_string(end) + ", it overlaps tensor '" + *before + "'");
    }
    if (entry->begin > end) {
      return bad("tensor '" + *name + "': data_offsets begin at " + std::to_string(entry->begin) +
                 ": expected " + std::to_string(end) + ", the format allows no holes");
    }
    end = entry->end;
    before = name;
  }
  if (end != data_bytes_) {
    return bad("the data has " + std::to_string(data_bytes_) + " bytes: expected " + std::to_string(end) +
               ", where the last tensor ends");
  }
  return Status::ok();
}

std::vector<std::string> SafeTensors::names() const {
  std::vector<std::string> result;
  for (const auto& [name, entry] : entries_) result.push_back(name);
  return result;
}

Result<TensorView> SafeTensors::find(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return Status(Code::kInvalidArgument, path_ + ": tensor '" + name + "' is missing");
  }
  const Entry& entry = found->second;
  const std::string who = path_ + ": tensor '" + name + "' ";
  if (entry.dtype == DType::kUndefined) {
    return Status(Code::kUnsupported, who + "has type " + entry.type + ": expected a type of the library");
  }
  if (entry.shape.size() > static_cast<size_t>(kMaxDims)) {
    return Status(Code::kUnsupported, who + "has shape " + shape_text(entry.shape) + ": expected at most " +
                                          std::to_string(kMaxDims) + " dimensions");
  }
  TensorView view;
  view.data = data_ + entry.begin;
  view.dtype = entry.dtype;
  view.dims = static_cast<int>(entry.shape.size());
  std::copy(entry.shape.begin(), entry.shape.end(), view.shape);
  view.set_contiguous();
  const auto element = static_cast<uintptr_t>(std::max(1, dtype_bits(entry.dtype) / 8));
  if (reinterpret_cast<uintptr_t>(view.data) % element != 0) {
    return Status(Code::kUnsupported, who + "begins at an address that is no multiple of " +
                                          std::to_string(element) +
                                          " bytes: expected a file with aligned tensors");
  }
  return view;
}

}  // namespace megamoe::checkpoint
