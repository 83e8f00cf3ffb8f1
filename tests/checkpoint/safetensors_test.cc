// safetensors files: round trip, and every kind of malformed file as an error that names what is wrong.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <numeric>
#include <vector>

#include "checkpoint/scratch.h"
#include "checkpoint/tensor_set.h"

namespace megamoe::checkpoint {
namespace {

using test::Scratch;

TEST(SafeTensors, RoundTrip) {
  Scratch scratch;
  std::vector<int8_t> bytes(7);
  std::vector<float> floats(6);
  std::iota(bytes.begin(), bytes.end(), int8_t{-3});
  std::iota(floats.begin(), floats.end(), 0.5f);
  const std::string path = scratch.file("a.safetensors");
  ASSERT_TRUE(write_safetensors(path,
                                {{"bytes", TensorView(bytes.data(), DType::kInt8, {7})},
                                 {"floats", TensorView(floats.data(), DType::kFloat32, {2, 3})},
                                 {"none", TensorView(nullptr, DType::kBFloat16, {0, 4})}},
                                {{"made", "here"}}));
  auto file = SafeTensors::open(path);
  ASSERT_TRUE(file) << file.status().message();
  EXPECT_EQ((*file)->names(), (std::vector<std::string>{"bytes", "floats", "none"}));
  EXPECT_EQ((*file)->metadata().at("made"), "here");
  auto view = (*file)->find("floats");
  ASSERT_TRUE(view) << view.status().message();
  EXPECT_EQ(view->dtype, DType::kFloat32);
  EXPECT_EQ(view->shape_text(), "(2, 3)");
  EXPECT_EQ(
      std::vector<float>(static_cast<const float*>(view->data), static_cast<const float*>(view->data) + 6),
      floats);
  view = (*file)->find("bytes");
  ASSERT_TRUE(view);
  EXPECT_EQ(
      std::vector<int8_t>(static_cast<const int8_t*>(view->data), static_cast<const int8_t*>(view->data) + 7),
      bytes);
  EXPECT_EQ((*file)->find("none")->shape_text(), "(0, 4)");
  EXPECT_EQ((*file)->find("other").status().message(), path + ": tensor 'other' is missing");
}

TEST(SafeTensors, WriterRefuses) {
  Scratch scratch;
  const float x = 0;
  const TensorView tensor(&x, DType::kFloat32, {1});
  TensorView strided(&x, DType::kFloat32, {2, 2});
  strided.strides[0] = 3;
  EXPECT_EQ(write_safetensors(scratch.file("a"), {{"s", strided}}).message(),
            "tensor 's' is not contiguous: expected row-major memory");
  EXPECT_EQ(write_safetensors(scratch.file("a"), {{"t", tensor}, {"t", tensor}}).message(),
            "tensor name 't' stands twice: expected names that differ");
  EXPECT_EQ(write_safetensors(scratch.file("none/a"), {{"t", tensor}}).code(), Code::kSystem);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

struct Malformed {
  const char* header;
  size_t data_bytes;
  const char* message;
};

TEST(SafeTensors, MalformedHeaders) {
  Scratch scratch;
  const Malformed cases[] = {
      {"[]", 0, "header is array: expected an object"},
      {"{", 0, "header: not valid JSON"},
      {R"({"a": 3})", 0, "tensor 'a': 3: expected an object"},
      {R"({"a": {"shape": [1], "data_offsets": [0, 4]}})", 4, "tensor 'a': dtype is missing"},
      {R"({"a": {"dtype": "F32", "data_offsets": [0, 4]}})", 4, "tensor 'a': shape is missing"},
      {R"({"a": {"dtype": "F32", "shape": [1]}})", 4, "tensor 'a': data_offsets is missing"},
      {R"({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}})", 4,
       "tensor 'a': dtype = \"F33\": expected a type of the safetensors format"},
      {R"({"a": {"dtype": 4, "shape": [1], "data_offsets": [0, 4]}})", 4, "tensor 'a': dtype = 4: expected"},
      {R"({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}})", 4,
       "tensor 'a': shape = 1: expected a list"},
      {R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4,
       "tensor 'a': shape = [-1]: expected sizes from 0 to 2^63 - 1"},
      {R"({"a": {"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 4]}})", 4,
       "tensor 'a': shape"},
      {R"({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}})", 4, "tensor 'a': shape = [1.5]"},
      {R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 4]}})", 4,
       "tensor 'a': shape = [4294967296,4294967296]: expected a size below 2^63 bits"},
      {R"({"a": {"dtype": "F32", "shape": [9223372036854775807, 2, 0], "data_offsets": [0, 0]}})", 0,
       "expected a size below 2^63 bits"},
      {R"({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}})", 2,
       "tensor 'a': shape = [3]: expected whole bytes"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", 4,
       "tensor 'a': data_offsets = [4,0]: expected [begin, end]"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}})", 4, "tensor 'a': data_offsets = [0]"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}})", 4,
       "tensor 'a': data_offsets = [-4,0]"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 4,
       "tensor 'a': data_offsets = [0,8]: expected an end of at most 4, the bytes the file has; it may be "
       "truncated"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", 4,
       "tensor 'a': data_offsets = [0,4]: expected 8 bytes for shape [2] of F32"},
      {R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}})",
       6, "tensor 'b': data_offsets begin at 2: expected 4, it overlaps tensor 'a'"},
      {R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "b": {"dtype": "U8", "shape": [4], "data_offsets": [6, 10]}})",
       10, "tensor 'b': data_offsets begin at 6: expected 4, the format allows no holes"},
      {R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})", 9,
       "the data has 9 bytes: expected 4"},
      {R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "a": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}})",
       8, "the name 'a' stands twice in one object: expected once"},
      {R"({"__metadata__": {"a": 1}})", 0, "__metadata__['a'] = 1: expected a string"},
      {R"({"__metadata__": []})", 0, "__metadata__ = []: expected an object of strings"},
      {"{\"\xff\": {}}", 0, "header: not valid JSON"},
  };
  for (const Malformed& c : cases) {
    SCOPED_TRACE(c.header);
    const std::string path = scratch.write_safetensors("bad.safetensors", c.header, c.data_bytes);
    auto file = SafeTensors::open(path);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.status().code(), Code::kDataLoss);
    EXPECT_EQ(file.status().message().find(path + ": "), 0u) << file.status().message();
    EXPECT_NE(file.status().message().find(c.message), std::string::npos) << file.status().message();
  }
}

TEST(SafeTensors, TruncatedAtEveryLength) {
  Scratch scratch;
  std::vector<float> floats(6, 1.0f);
  const std::string path = scratch.file("a.safetensors");
  ASSERT_TRUE(write_safetensors(path, {{"floats", TensorView(floats.data(), DType::kFloat32, {2, 3})}}));
  const auto size = std::filesystem::file_size(path);
  for (auto length = size; length-- > 0;) {
    std::filesystem::resize_file(path, length);
    auto file = SafeTensors::open(path);
    ASSERT_FALSE(file) << length;
    EXPECT_EQ(file.status().code(), Code::kDataLoss);
  }
}

TEST(SafeTensors, AbsurdHeaderLength) {
  Scratch scratch;
  auto file = SafeTensors::open(scratch.write("a", std::string(8, '\xff') + "{}"));
  ASSERT_FALSE(file);
  EXPECT_NE(file.status().message().find("header length = 18446744073709551615: expected at most 2"),
            std::string::npos)
      << file.status().message();
}

TEST(SafeTensors, NotAFile) {
  Scratch scratch;
  EXPECT_EQ(SafeTensors::open(scratch.path()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SafeTensors::open(scratch.file("none")).status().message(),
            scratch.file("none") + " cannot be opened: No such file or directory");
  const std::string pipe = scratch.file("pipe.safetensors");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(SafeTensors::open(pipe).status().message().find("is not a regular file"), std::string::npos);
}

TEST(SafeTensors, TypesAViewCannotHold) {
  Scratch scratch;
  const std::string path = scratch.write_safetensors(
      "a",
      R"({"d": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]},)"
      R"("six": {"dtype": "U8", "shape": [1, 1, 1, 1, 1, 1], "data_offsets": [8, 9]},)"
      R"("odd": {"dtype": "BF16", "shape": [1], "data_offsets": [9, 11]}})",
      11);
  auto file = SafeTensors::open(path);
  ASSERT_TRUE(file) << file.status().message();
  for (const char* name : {"d", "six"}) EXPECT_EQ((*file)->find(name).status().code(), Code::kUnsupported);
}

TEST(TensorSet, Shards) {
  Scratch scratch;
  const float x[2] = {1, 2};
  ASSERT_TRUE(
      write_safetensors(scratch.file("model-1.safetensors"), {{"a", TensorView(x, DType::kFloat32, {1})}}));
  ASSERT_TRUE(write_safetensors(scratch.file("model-2.safetensors"),
                                {{"b", TensorView(x + 1, DType::kFloat32, {1})}}));
  const std::string index = "model.safetensors.index.json";
  scratch.write(index, R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})");
  auto set = TensorSet::open(scratch.path());
  ASSERT_TRUE(set) << set.status().message();
  EXPECT_EQ(*static_cast<const float*>((*set)->find("b")->data), 2.0f);
  EXPECT_FALSE((*set)->find("c"));

  const std::pair<const char*, const char*> bad[] = {
      {R"({"weight_map": {"a": "../model-1.safetensors"}})", "weight_map['a'] = \"../model-1.safetensors\""},
      {R"({"weight_map": {"a": "/etc/passwd"}})", "weight_map['a'] = \"/etc/passwd\""},
      {R"({"weight_map": {"a": ".safetensors"}})", "weight_map['a']"},
      {R"({"weight_map": {"a": 1}})", "weight_map['a'] = 1"},
      {R"({"weight_map": {"a": "model-2.safetensors"}})", "expected a file that holds the tensor"},
      {R"({"weight_map": []})", "weight_map is missing"},
      {"[]", "weight_map is missing"},
      {R"({"weight_map": {"a": "model-3.safetensors"}})", "expected a file that exists beside the index"},
  };
  for (const auto& [text, message] : bad) {
    scratch.write(index, text);
    const Status status = TensorSet::open(scratch.path()).status();
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
  }
}

TEST(TensorSet, NoCheckpoint) {
  Scratch scratch;
  EXPECT_EQ(TensorSet::open(scratch.path()).status().message(),
            scratch.path() +
                " has neither model.safetensors.index.json nor model.safetensors: expected a checkpoint in "
                "safetensors format");
  EXPECT_EQ(TensorSet::open(scratch.file("none")).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace megamoe::checkpoint
