// Reading of test cases, good and malformed.
#include "cli/case_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace megamoe::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kVectors = std::string(MEGAMOE_TEST_DATA) + "/vectors";

/// A directory of its own for each test, gone afterwards.
class CaseFile : public testing::Test {
 protected:
  CaseFile() {
    std::string name = (fs::temp_directory_path() / "megamoe_case_XXXXXX").string();
    directory = mkdtemp(name.data()) == nullptr ? "" : name;
    description = json::parse(R"({
      "op": "mega_moe", "ranks": 2,
      "attrs": {"mode": 2, "sat": true, "activation": "swiglu", "params": [0.5, 1], "none": null, "scale": 0.25},
      "inputs": {"x.r1": {"arg": "x", "rank": 1, "dtype": "float32", "shape": [1, 2], "file": "x.bin"},
                 "w": {"dtype": "int8", "shape": [2, 3, 33], "format": "FRACTAL_NZ",
                       "storage_shape": [2, 2, 1, 16, 32], "file": "w.bin"}},
      "expect": {"y": {"dtype": "float32", "shape": [2], "file": "y.bin", "compare": {"rel_fro": 0.5, "max_abs": 1}}}
    })");
    write("x.bin", std::string(8, '\0'));
    write("w.bin", std::string(2 * 2 * 16 * 32, '\1'));
    write("y.bin", std::string(8, '\0'));
  }
  ~CaseFile() override {
    std::error_code ignored;
    fs::remove_all(directory, ignored);
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(fs::path(directory) / name, std::ios::binary) << content;
  }
  Result<Case> load() const {
    write("case.json", description.dump());
    return load_case(directory);
  }
  /// The message of a load that must fail, without the directory.
  std::string error() const {
    const Result<Case> result = load();
    EXPECT_FALSE(result.is_ok());
    std::string message = result.status().message();
    if (message.rfind(directory, 0) == 0) message = message.substr(directory.size() + 1);
    return message;
  }
  std::string directory;
  json description;
};

TEST_F(CaseFile, ReadsEverything) {
  const Result<Case> test = load();
  ASSERT_TRUE(test) << test.status().message();
  EXPECT_EQ(test->name, fs::path(directory).filename().string());
  EXPECT_EQ(test->op, "mega_moe");
  EXPECT_EQ(test->ranks, 2);
  EXPECT_FALSE(test->expects_error());
  EXPECT_EQ(*test->integer("mode", 0), 2);
  EXPECT_EQ(*test->integer("absent", 7), 7);
  EXPECT_EQ(*test->integer("none", 7), 7);
  EXPECT_TRUE(*test->flag("sat", false));
  EXPECT_EQ(*test->text("activation", ""), "swiglu");
  EXPECT_EQ(*test->numbers("params"), (std::vector<double>{0.5, 1}));
  EXPECT_TRUE(test->numbers("absent")->empty());
  EXPECT_EQ(test->integer("activation", 0).status().message(),
            test->name + ": attrs.activation: expected an integer");
  EXPECT_EQ(test->text("mode", "").status().message(), test->name + ": attrs.mode: expected a text");

  EXPECT_EQ(test->input("x", 0), nullptr);
  const CaseTensor* x = test->input("x", 1);
  ASSERT_NE(x, nullptr);
  EXPECT_EQ(x->key, "x.r1");
  const CaseTensor* w = test->input("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->bytes.size(), 2048u);
  EXPECT_EQ(w->view().layout, Layout::kFractalNz);
  EXPECT_EQ(w->view().shape_text(), "(2, 3, 33)");
  EXPECT_EQ(w->view().data, w->bytes.data());
  ASSERT_EQ(test->expected.size(), 1u);
  EXPECT_FALSE(test->expected[0].tolerance.exact);
  EXPECT_EQ(test->expected[0].tolerance.rel_fro, 0.5);
  EXPECT_EQ(test->expected[0].tolerance.max_abs, 1);
}

TEST_F(CaseFile, ReadsErrorCases) {
  const Result<Case> test = load_case(kVectors + "/err_mm_activation_name/");
  ASSERT_TRUE(test) << test.status().message();
  EXPECT_TRUE(test->expects_error());
  EXPECT_EQ(test->name, "err_mm_activation_name");
  EXPECT_EQ(test->expect_error, "unknown activation relu");
  EXPECT_EQ(test->error_arg, "activation");
  EXPECT_TRUE(test->expected.empty());
}

TEST_F(CaseFile, CommittedCasesLoad) {
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(kVectors)) {
    const Result<Case> test = load_case(entry.path().string());
    EXPECT_TRUE(test) << test.status().message();
    ++cases;
  }
  EXPECT_GT(cases, 0);
}

TEST_F(CaseFile, EmptyTensors) {
  description["inputs"]["x.r1"]["shape"] = {0, 2};
  write("x.bin", "");
  const Result<Case> test = load();
  ASSERT_TRUE(test) << test.status().message();
  EXPECT_EQ(test->input("x", 1)->view().shape[0], 0);
}

TEST_F(CaseFile, MissingFiles) {
  EXPECT_EQ(load_case(directory).status().message(), directory + "/case.json: expected a file");
  EXPECT_EQ(load_case(directory + "/nowhere").status().code(), Code::kSystem);
  fs::remove(directory + "/x.bin");
  EXPECT_EQ(error(), "x.bin: expected a file");
  fs::create_directory(directory + "/x.bin");
  EXPECT_EQ(error(), "x.bin: expected a file");
}

TEST_F(CaseFile, FilesOfWrongSize) {
  write("x.bin", "1234567");
  EXPECT_EQ(error(), "x.bin: has 7 bytes: expected 8");
}

TEST_F(CaseFile, BrokenJson) {
  for (const std::string text : {"", "{", "[1]", "null", "{\"op\": \"a\",}", "\xff\xfe"}) {
    write("case.json", text);
    EXPECT_EQ(load_case(directory).status().message(), directory + "/case.json: expected a JSON object")
        << text;
  }
  write("case.json", std::string(100000, '['));
  EXPECT_FALSE(load_case(directory).is_ok());
}

TEST_F(CaseFile, PathsOutOfTheCase) {
  write("secret", std::string(8, '\0'));
  for (const std::string name : {"../x.bin", "/etc/passwd", "sub/x.bin", "..", ".", "", "a\\b"}) {
    description["inputs"]["x.r1"]["file"] = name;
    EXPECT_EQ(error(), "case.json: x.r1: file: expected a name without a path") << name;
  }
  CaseTensor tensor;
  tensor.key = "y";
  tensor.file = "../y.bin";
  EXPECT_FALSE(write_tensor(directory, tensor, {}).is_ok());
}

TEST_F(CaseFile, EveryRequiredKey) {
  for (const char* key : {"op", "inputs", "expect"}) {
    json saved = description;
    description.erase(key);
    EXPECT_NE(error().find(std::string(key) + ": expected"), std::string::npos) << key;
    description = saved;
    description[key] = 5;
    EXPECT_NE(error().find(std::string(key) + ": expected"), std::string::npos) << key;
    description = saved;
  }
  for (const char* key : {"dtype", "shape", "file", "storage_shape"}) {
    json saved = description;
    description["inputs"]["w"].erase(key);
    EXPECT_NE(error().find("w: " + std::string(key) + ": expected"), std::string::npos) << key;
    description = saved;
  }
  description["expect"]["y"].erase("compare");
  EXPECT_EQ(error(), "case.json: y: compare: expected \"exact\" or numbers rel_fro and max_abs");
}

TEST_F(CaseFile, WrongValues) {
  struct Wrong {
    const char* pointer;
    json value;
    const char* message;
  };
  const Wrong wrongs[] = {
      {"/ranks", 0, "ranks: expected an integer in [1, 4096]"},
      {"/ranks", 1e300, "ranks: expected an integer in [1, 4096]"},
      {"/ranks", "2", "ranks: expected an integer in [1, 4096]"},
      {"/ranks", uint64_t{1} << 63, "ranks: expected an integer in [1, 4096]"},
      {"/attrs", 3, "attrs: expected an object"},
      {"/attrs/mode", json::array({"a"}), "attrs.mode: expected a number, text, flag or list of numbers"},
      {"/attrs/mode", json::object(), "attrs.mode: expected a number, text, flag or list of numbers"},
      {"/attrs/mode", ~uint64_t{0}, "attrs.mode: expected a number that 64 bits hold"},
      {"/note", 3, "note: expected a text"},
      {"/inputs/w", 3, "w: expected an object"},
      {"/inputs/w/arg", 3, "w: arg: expected a text"},
      {"/inputs/w/rank", 2, "w: rank: expected an integer in [0, 1]"},
      {"/inputs/w/rank", -1, "w: rank: expected an integer in [0, 1]"},
      {"/inputs/w/dtype", "int9", "w: dtype: \"int9\" is no type"},
      {"/inputs/w/dtype", "undefined", "w: dtype: \"undefined\" is no type"},
      {"/inputs/w/dtype", "float32", "w: storage_shape: does not fit shape and format"},
      {"/inputs/w/dtype", "int64", "w: format: FRACTAL_NZ is not defined for int64 of 3 dimensions"},
      {"/inputs/w/format", "NZ", "w: format: expected ND, FRACTAL_NZ or FRACTAL_NZ_C0_32"},
      {"/inputs/w/format", "ND", "w: storage_shape: does not fit shape and format"},
      {"/inputs/w/shape", json::array({33}), "w: format: FRACTAL_NZ is not defined for int8 of 1 dimensions"},
      {"/inputs/w/shape", json::array({2, -3, 33}), "w: shape: expected up to 5 extents >= 0"},
      {"/inputs/w/shape", json::array({2, 3.5, 33}), "w: shape: expected up to 5 extents >= 0"},
      {"/inputs/w/shape", json::array({1, 1, 1, 1, 1, 1}), "w: shape: expected up to 5 extents >= 0"},
      {"/inputs/w/shape", json::array({2, int64_t{1} << 40, 33}), "w: shape: expected up to 5 extents >= 0"},
      {"/inputs/w/shape", "2,3", "w: shape: expected up to 5 extents >= 0"},
      {"/inputs/w/shape", json::array({2, 3, 65}), "w: storage_shape: does not fit shape and format"},
      {"/inputs/x.r1/shape", json::array({0, 2147483647, 2147483647, 2147483647}),
       "x.r1: shape: too many elements"},
      {"/expect/y/compare", "close", "y: compare: expected \"exact\" or numbers rel_fro and max_abs"},
      {"/expect/y/compare/rel_fro", "1", "y: compare: expected \"exact\" or numbers rel_fro and max_abs"},
  };
  for (const Wrong& wrong : wrongs) {
    const json saved = description;
    description[json::json_pointer(wrong.pointer)] = wrong.value;
    EXPECT_EQ(error(), std::string("case.json: ") + wrong.message) << wrong.pointer << " " << wrong.value;
    description = saved;
  }
}

TEST_F(CaseFile, ErrorCasesNeedWords) {
  description["expect_error"] = "bad";
  EXPECT_EQ(error(), "case.json: error_arg: expected a text");
  description["error_arg"] = "x";
  EXPECT_TRUE(load().is_ok());
  description["expect_error"] = "";
  EXPECT_EQ(error(), "case.json: expect_error: expected a text that is not empty");
}

TEST_F(CaseFile, FourBitTypes) {
  json& x = description["inputs"]["x.r1"];
  x["dtype"] = "int4";
  x["shape"] = {2, 8};
  EXPECT_TRUE(load().is_ok());
  x["shape"] = {2, 7};
  EXPECT_EQ(error(), "case.json: x.r1: shape: expected an even last extent for int4");
}

TEST_F(CaseFile, WritesTensors) {
  CaseTensor tensor;
  tensor.file = "out.bin";
  ASSERT_TRUE(write_tensor(directory, tensor, std::vector<std::byte>(3, std::byte{'a'})));
  std::string text;
  std::ifstream(directory + "/out.bin") >> text;
  EXPECT_EQ(text, "aaa");
  EXPECT_EQ(write_tensor(directory + "/nowhere", tensor, {}).message(),
            directory + "/nowhere/out.bin: cannot be written");
}

}  // namespace
}  // namespace megamoe::cli
