// Dumps of megamoe check and their comparison by megamoe diff.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "checkpoint/safetensors.h"
#include "checkpoint/scratch.h"
#include "cli/tool.h"

namespace megamoe {
namespace {

using nlohmann::json;
using test::contains;
using test::Outcome;
using test::run;
using test::run_json;
using test::Scratch;

constexpr const char* kCheck = "check --shape 64x32x6x2 --tokens 11 --ranks 2 --shared-experts 1 --dump ";

/// The tensors of a file in memory that can be changed.
class Tensors {
 public:
  explicit Tensors(const std::string& path) : path_(path) {
    auto file = checkpoint::SafeTensors::open(path);
    EXPECT_TRUE(file) << file.status().message();
    for (const std::string& name : (*file)->names()) {
      Entry& entry = entries_[name];
      entry.view = (*file)->find(name).value();
      const auto* bytes = static_cast<const std::byte*>(entry.view.data);
      entry.bytes.assign(bytes, bytes + entry.view.elements() * dtype_bits(entry.view.dtype) / 8);
      entry.view.data = entry.bytes.data();
    }
  }
  bool has(const std::string& name) const { return entries_.count(name) != 0; }
  const TensorView& view(const std::string& name) const { return entries_.at(name).view; }
  void flip(const std::string& name, int64_t element) {
    Entry& entry = entries_.at(name);
    const int64_t bit = element * dtype_bits(entry.view.dtype);
    entry.bytes[static_cast<size_t>(bit / 8)] ^= std::byte{1} << bit % 8;
  }
  void write() const {
    std::vector<std::pair<std::string, TensorView>> list;
    for (const auto& [name, entry] : entries_) list.emplace_back(name, entry.view);
    const Status status = checkpoint::write_safetensors(path_, list);
    EXPECT_TRUE(status) << status.message();
  }

 private:
  struct Entry {
    std::vector<std::byte> bytes;
    TensorView view;
  };
  std::string path_;
  std::map<std::string, Entry> entries_;
};

TEST(Dump, HasEveryStageOfBothSides) {
  const Scratch scratch;
  run_json(kCheck + scratch.file("d"));
  const std::pair<const char*, std::vector<DType>> types[] = {
      // token codes, token scales, Linear1, requantised codes, requantise scales
      {"A16W16", {DType::kBFloat16, DType::kFloat32, DType::kBFloat16, DType::kBFloat16, DType::kFloat32}},
      {"A8W8-INT", {DType::kInt8, DType::kFloat32, DType::kFloat32, DType::kInt8, DType::kFloat32}},
      {"A8W4-INT", {DType::kInt8, DType::kFloat32, DType::kFloat32, DType::kInt8, DType::kFloat32}},
      {"A8W8-FP",
       {DType::kFloat8E4M3, DType::kFloat8E8M0, DType::kBFloat16, DType::kFloat8E4M3, DType::kFloat8E8M0}},
      {"A8W8-FP-E5M2",
       {DType::kFloat8E5M2, DType::kFloat8E8M0, DType::kBFloat16, DType::kFloat8E5M2, DType::kFloat8E8M0}},
      {"A16W4-FP", {DType::kBFloat16, DType::kFloat32, DType::kBFloat16, DType::kBFloat16, DType::kFloat32}},
      {"A8W4-FP",
       {DType::kFloat8E4M3, DType::kFloat8E8M0, DType::kBFloat16, DType::kFloat8E4M3, DType::kFloat8E8M0}},
      {"A4W4-FP",
       {DType::kFloat4E2M1, DType::kFloat8E8M0, DType::kBFloat16, DType::kFloat8E4M3, DType::kFloat8E8M0}}};
  for (const char* side : {"fast", "reference"}) {
    for (const auto& [scenario, type] : types) {
      int64_t rows = 0;
      for (const char* rank : {"rank0", "rank1"}) {
        const Tensors file(scratch.file("d/") + side + "/" + scenario + "/" + rank + ".safetensors");
        rows += file.view("row order").shape[0];
        for (const std::string prefix : {"", "shared "}) {
          const char* const names[] = {"token codes", "token scales", "Linear1", "requantised codes",
                                       "requantise scales"};
          for (size_t i = 0; i < type.size(); ++i) {
            EXPECT_EQ(file.view(prefix + names[i]).dtype, type[i]) << scenario << " " << prefix << names[i];
          }
          EXPECT_EQ(file.view(prefix + "Linear1").shape[1], 64);
          EXPECT_EQ(file.view(prefix + "activation").shape[1], 32);
          EXPECT_EQ(file.view(prefix + "Linear2").shape[1], 64);
        }
        EXPECT_EQ(file.view("returned rows").dtype, DType::kBFloat16);
        EXPECT_EQ(file.view("y").shape[1], 64);
        EXPECT_EQ(file.view("expert_token_nums").shape[0], 3);
      }
      EXPECT_EQ(rows, 22) << scenario;
    }
  }
  const Outcome again = run(kCheck + scratch.file("d"));
  EXPECT_EQ(again.code, 2);
  EXPECT_TRUE(contains(again.error, "expected a folder that holds no dump yet")) << again.error;
}

TEST(Diff, DumpsOfEqualRunsAreTheSame) {
  const Scratch scratch;
  run_json(kCheck + scratch.file("one") + " --threads 1 --combine-quant-mode 3");
  run_json(kCheck + scratch.file("two") + " --threads 3 --combine-quant-mode 3 --transport shm");
  const json result = run_json("diff " + scratch.file("one/fast") + " " + scratch.file("two/fast"));
  ASSERT_EQ(result.size(), 12u);
  for (const json& scenario : result) {
    EXPECT_TRUE(scenario["first"].is_null()) << scenario.dump(1);
    EXPECT_EQ(scenario["stages"].size(), 19u);
  }
  const Outcome text = run("diff " + scratch.file("one/fast") + " " + scratch.file("two/fast"));
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(contains(text.out, "No stage differs.")) << text.out;
}

// One bit of one element of one stage on one rank, stage by stage in every scenario.
TEST(Diff, NamesTheElementThatDiffers) {
  const Scratch scratch;
  run_json(kCheck + scratch.file("d"));
  const std::string a = scratch.file("d/fast"), b = scratch.file("b");
  std::filesystem::copy(a, b, std::filesystem::copy_options::recursive);
  for (const json& scenario : run_json("diff " + a + " " + b)) {
    const std::string name = scenario["scenario"];
    const std::string path = b + "/" + name + "/rank1.safetensors";
    for (auto stage = scenario["stages"].rbegin(); stage != scenario["stages"].rend(); ++stage) {
      const std::string stage_name = (*stage)["stage"];
      Tensors file(path);
      ASSERT_TRUE(file.has(stage_name)) << name << " " << stage_name;
      const TensorView& values = file.view(stage_name);
      const int64_t columns = values.dims == 1 ? 1 : values.shape[1];
      const int64_t row = values.shape[0] / 2, column = columns / 3;
      file.flip(stage_name, row * columns + column);
      file.write();
      for (const json& result : run_json("diff " + a + " " + b, 1)) {
        if (result["scenario"] != name) continue;
        const json& first = result["first"];
        ASSERT_FALSE(first.is_null()) << name << " " << stage_name;
        EXPECT_EQ(first["stage"], stage_name) << name;
        EXPECT_EQ(first["rank"], 1) << name << " " << stage_name;
        EXPECT_EQ(first["row"], row) << name << " " << stage_name;
        EXPECT_EQ(first["column"], column) << name << " " << stage_name;
        EXPECT_EQ(first["ulps"], 1) << name << " " << stage_name;
        EXPECT_NE(first["a"], first["b"]);
      }
    }
    std::filesystem::copy(a + "/" + name, b + "/" + name, std::filesystem::copy_options::overwrite_existing);
  }
}

TEST(Diff, SaysWhatItFoundAndForgivesOnRequest) {
  const Scratch scratch;
  run_json(std::string("check --shape 64x32x6x2 --tokens 5 --scenario A16W16 --dump ") + scratch.file("d"));
  const std::string a = scratch.file("d/fast"), b = scratch.file("b");
  std::filesystem::copy(a, b, std::filesystem::copy_options::recursive);
  Tensors file(b + "/A16W16/rank0.safetensors");
  const auto* home = static_cast<const int64_t*>(file.view("row order").data) + 3 * 4;
  file.flip("Linear2", 4 * 64 + 7);
  const std::string token = std::to_string(home[1]), slot = std::to_string(home[2]);
  file.write();
  const Outcome outcome = run("diff " + a + " " + b);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.out, "First difference: Linear2 on rank 0, row 4 (token " + token + ", slot " +
                                        slot + " of rank 0), column 7: "))
      << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "ulps apart: 1.")) << outcome.out;
  EXPECT_EQ(run("diff " + a + " " + b + " --ulps 1").code, 0);
  EXPECT_EQ(run("diff " + a + " " + b + " --ulps 0").code, 1);
}

TEST(Diff, ANumberAgainstNanIsNotZeroApart) {
  const Scratch scratch;
  run_json(std::string("check --shape 64x32x6x2 --tokens 5 --scenario A16W16 --dump ") + scratch.file("d"));
  const std::string a = scratch.file("d/fast"), b = scratch.file("b");
  std::filesystem::copy(a, b, std::filesystem::copy_options::recursive);
  Tensors file(b + "/A16W16/rank0.safetensors");
  auto* const y = static_cast<uint16_t*>(const_cast<void*>(file.view("y").data));
  y[70] = 0x7fc0;
  file.write();
  const Outcome outcome = run("diff " + a + " " + b);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.out, "and nan, ulps apart: NaN.")) << outcome.out;
  for (const json& stage : run_json("diff " + a + " " + b, 1)[0]["stages"]) {
    EXPECT_EQ(stage["most_ulps"].is_null(), stage["stage"] == "y") << stage;
    EXPECT_EQ(stage["nans"], stage["stage"] == "y" ? 1 : 0) << stage;
  }
}

TEST(Diff, DumpsThatDoNotBelongTogether) {
  const Scratch scratch;
  const std::string check = "check --shape 64x32x6x2 --scenario A16W16 --tokens ";
  run_json(check + "5 --dump " + scratch.file("five"));
  run_json(check + "6 --dump " + scratch.file("six"));
  run_json(check + "5 --ranks 2 --dump " + scratch.file("two"));
  run_json("check --shape 64x32x6x2 --scenario A8W8-INT --tokens 5 --dump " + scratch.file("int8"));
  const auto diff = [&](const std::string& a, const std::string& b) {
    return run("diff " + scratch.file(a) + "/fast " + scratch.file(b) + "/fast");
  };
  EXPECT_EQ(diff("five", "six").code, 1);
  EXPECT_TRUE(contains(diff("five", "six").out, "First difference: row order on rank 0: int64 (10, 3) in "))
      << diff("five", "six").out;
  EXPECT_EQ(diff("five", "two").code, 2);
  EXPECT_TRUE(contains(diff("five", "two").error, "has ranks of A16W16: 2: expected 1 as "))
      << diff("five", "two").error;
  EXPECT_EQ(diff("five", "int8").code, 2);
  EXPECT_TRUE(contains(diff("five", "int8").error, "has scenarios A8W8-INT: expected A16W16 as "))
      << diff("five", "int8").error;
  EXPECT_EQ(diff("five", "none").code, 2);
  EXPECT_TRUE(contains(diff("five", "none").error, "holds no dump")) << diff("five", "none").error;
}

}  // namespace
}  // namespace megamoe
