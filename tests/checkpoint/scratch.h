// A directory of one test, removed with everything in it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace megamoe::test {

class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "megamoe_test_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(file(name), std::ios::binary) << content;
    return file(name);
  }
  /// A safetensors file of a header text and `data_bytes` bytes of data.
  std::string write_safetensors(const std::string& name, const std::string& header, size_t data_bytes) const {
    std::string content(8, '\0');
    for (size_t i = 0, n = header.size(); i < 8; ++i, n >>= 8) content[i] = static_cast<char>(n & 0xff);
    return write(name, content + header + std::string(data_bytes, '\1'));
  }

 private:
  std::string path_;
};

}  // namespace megamoe::test
