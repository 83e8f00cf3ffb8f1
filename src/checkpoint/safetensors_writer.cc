// Writes a safetensors file: header, then the tensors, those with wide elements first so that all are
// aligned.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace megamoe::checkpoint {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

int64_t bytes_of(const TensorView& t) {
  return t.elements() * dtype_bits(t.dtype) / 8;
}

}  // namespace

Status write_safetensors(const std::string& path,
                         const std::vector<std::pair<std::string, TensorView>>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<const std::pair<std::string, TensorView>*> order;
  for (const auto& item : tensors) {
    const auto& [name, tensor] = item;
    if (safetensors_type(tensor.dtype) == nullptr) {
      return Status(Code::kInvalidType, "tensor '" + name + "' has type " + dtype_name(tensor.dtype) +
                                            ": expected a type of the safetensors format");
    }
    if (tensor.layout != Layout::kNd || !tensor.is_contiguous()) {
      return Status(Code::kInvalidArgument,
                    "tensor '" + name + "' is not contiguous: expected row-major memory");
    }
    order.push_back(&item);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return dtype_bits(a->second.dtype) > dtype_bits(b->second.dtype);
  });

  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const auto* item : order) {
    const auto& [name, tensor] = *item;
    if (name == "__metadata__" || header.contains(name)) {
      return Status(Code::kInvalidArgument,
                    "tensor name '" + name + "' stands twice: expected names that differ");
    }
    const std::vector<int64_t> shape(tensor.shape, tensor.shape + tensor.dims);
    header[name] = {{"dtype", safetensors_type(tensor.dtype)},
                    {"shape", shape},
                    {"data_offsets", {offset, offset + bytes_of(tensor)}}};
    offset += bytes_of(tensor);
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');

  const std::string temporary = path + ".partial";
  std::unique_ptr<std::FILE, CloseFile> file(std::fopen(temporary.c_str(), "wb"));
  auto failed = [&](const char* what) {
    const std::string message = path + " cannot be " + what + ": " + std::strerror(errno);
    file.reset();
    std::remove(temporary.c_str());
    return Status(Code::kSystem, message);
  };
  if (!file) return failed("written");
  const uint64_t length = text.size();
  auto put = [&](const void* data, size_t bytes) {
    return bytes == 0 || std::fwrite(data, 1, bytes, file.get()) == bytes;
  };
  bool good = put(&length, sizeof(length)) && put(text.data(), text.size());
  for (const auto* item : order) {
    good = good && put(item->second.data, static_cast<size_t>(bytes_of(item->second)));
  }
  if (!good || std::fflush(file.get()) != 0) return failed("written");
  file.reset();
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return failed("renamed");
  return Status::ok();
}

}  // namespace megamoe::checkpoint
