// megamoe run on checkpoints made here: bfloat16 weights, stored codes, what is wrong.
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <random>

#include "checkpoint/safetensors.h"
#include "checkpoint/scratch.h"
#include "cli/tool.h"
#include "format/bf16.h"

namespace megamoe {
namespace {

using nlohmann::json;
using test::contains;
using test::kScenarios;
using test::Outcome;
using test::run;
using test::run_json;

/// A small checkpoint with recorded tokens: 4 experts, top-2, layers 0 and 1.
class Checkpoint {
 public:
  explicit Checkpoint(int64_t hidden = 32, int64_t inter = 16, int64_t tokens = 5) {
    scratch.write("config.json", R"({"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": )" +
                                     std::to_string(hidden) + R"(, "moe_intermediate_size": )" +
                                     std::to_string(inter) +
                                     R"(, "num_experts": 4, "num_experts_per_tok": 2})");
    std::vector<std::pair<std::string, TensorView>> tensors, recorded;
    for (int layer = 0; layer < 2; ++layer) {
      const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
      tensors.emplace_back(mlp + "gate.weight", values({4, hidden}));
      for (int e = 0; e < 4; ++e) {
        const std::string expert = mlp + "experts." + std::to_string(e) + ".";
        tensors.emplace_back(expert + "gate_proj.weight", values({inter, hidden}));
        tensors.emplace_back(expert + "up_proj.weight", values({inter, hidden}));
        tensors.emplace_back(expert + "down_proj.weight", values({hidden, inter}));
      }
      const std::string prefix = "layers." + std::to_string(layer) + ".";
      recorded.emplace_back(prefix + "hidden_states", values({tokens, hidden}));
      recorded.emplace_back(prefix + "topk_ids", TensorView(ids, DType::kInt32, {tokens, 2}));
      recorded.emplace_back(prefix + "topk_weights", TensorView(weights, DType::kFloat32, {tokens, 2}));
    }
    EXPECT_TRUE(checkpoint::write_safetensors(scratch.file("model.safetensors"), tensors));
    EXPECT_TRUE(checkpoint::write_safetensors(scratch.file("captured.safetensors"), recorded));
  }
  test::Scratch scratch;
  int32_t ids[10] = {0, 1, 1, 2, 2, 3, 3, 0, 0, 2};
  float weights[10] = {0.5f, 0.5f, 0.25f, 0.75f, 1, 0, 0.5f, 0.5f, 0.5f, 0.5f};

 private:
  TensorView values(std::initializer_list<int64_t> shape) {
    TensorView t(nullptr, DType::kBFloat16, shape);
    std::normal_distribution<float> normal(0.0f, 0.3f);
    memory.emplace_back();
    for (int64_t i = 0; i < t.elements(); ++i)
      memory.back().push_back(format::bf16_from_float(normal(random)));
    t.data = memory.back().data();
    return t;
  }
  std::mt19937 random{1};
  std::vector<std::vector<uint16_t>> memory;
};

TEST(Tool, RunsACheckpoint) {
  const Checkpoint model;
  const std::string input = " --input " + model.scratch.file("captured.safetensors");
  for (const std::string& more :
       {input + " --ranks 4 --transport shm", input + " --ranks 2", input + " --ranks 3", std::string()}) {
    const json result = run_json("run " + model.scratch.path() + more);
    ASSERT_EQ(result["rows"].size(), 2 * kScenarios);
    for (const json& row : result["rows"]) {
      EXPECT_EQ(row["ok"], true);
      // What the formats cost: nothing, some percent with 8 bits, more with 4.
      const std::string scenario = row["scenario"];
      const double cost = row["error_against_a16w16"];
      EXPECT_LT(cost, scenario == "A16W16" ? 2e-3 : contains(scenario, "4") ? 0.3 : 0.2) << scenario;
      EXPECT_GT(cost, scenario == "A16W16" ? -1 : 2e-3) << scenario;
      EXPECT_EQ(row["tokens"], more.empty() ? 256 : 5);
      EXPECT_GT(row["tokens_per_second"].get<double>(), 0);
    }
  }
  EXPECT_TRUE(contains(run("run " + model.scratch.path() + " --ranks 2 --profile ascend_950").error,
                       "hidden = 32: expected a multiple of 64 in [1024, 8192] (profile ascend_950)"));
  EXPECT_EQ(
      run_json("run " + model.scratch.path() + " --layer 1 --scenario A16W16 --tokens 3" + input)["rows"]
          .size(),
      1u);
  const Outcome text = run("run " + model.scratch.path() + input);
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(contains(text.out, "A8W8-INT")) << text.out;
}

// What a profile refuses of a scenario is said before another one runs.
TEST(Tool, PlansTheScenariosOfACheckpointFirst) {
  const Checkpoint model(1024, 512);
  const Outcome outcome = run("check " + model.scratch.path() +
                              " --ranks 2 --tokens 2 --profile ascend_a2_a3 --scenario A16W16,A4W4-FP");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(contains(outcome.error, "dispatch_quant_mode = 4: expected ")) << outcome.error;
}

TEST(Tool, RunsRecordedLayersWithoutTokens) {
  const Checkpoint model(32, 16, 0);
  const json result = run_json("run " + model.scratch.path() + " --scenario A16W16 --input " +
                               model.scratch.file("captured.safetensors"));
  for (const json& row : result["rows"]) EXPECT_EQ(row["ok"], true);
}

/// Weights that are stored as codes run in the scenarios that take them, in no other, and need no bfloat16.
TEST(Tool, RunsStoredCodes) {
  const test::Scratch scratch;
  std::mt19937 random(3);
  std::deque<std::vector<uint8_t>> memory;
  auto bytes = [&](DType dtype, std::initializer_list<int64_t> shape, int least, int most) {
    TensorView t(nullptr, dtype, shape);
    std::uniform_int_distribution<int> values(least, most);
    memory.emplace_back(static_cast<size_t>(t.elements() * dtype_bits(dtype) / 8));
    for (uint8_t& byte : memory.back()) byte = static_cast<uint8_t>(values(random));
    t.data = memory.back().data();
    return t;
  };
  const std::vector<uint16_t> half(1 << 12, 0x2c00);  // 1 / 16 as float16, small as bfloat16
  const std::string mlp = "model.layers.0.mlp.";
  auto write = [&](std::vector<std::pair<std::string, TensorView>> tensors, const std::string& router,
                   const std::string& more) {
    tensors.emplace_back(mlp + router + ".weight", bytes(DType::kBFloat16, {4, 64}, 0x3a, 0x3b));
    ASSERT_TRUE(checkpoint::write_safetensors(scratch.file("model.safetensors"), tensors));
    scratch.write("config.json", R"({"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 32,
                                     "num_experts": 4, "num_experts_per_tok": 2, )" +
                                     more + "}");
  };
  auto scenarios = [&] {
    std::string names;
    const json result = run_json("run --ranks 2 --tokens 9 --repeat 1 " + scratch.path());
    for (const json& row : result["rows"]) {
      EXPECT_EQ(row["ok"], true);
      names += row["scenario"].get<std::string>() + " ";
    }
    return names;
  };
  std::vector<std::pair<std::string, TensorView>> oss;
  for (const auto& [name, n, k] : {std::tuple("gate_up_proj", 64, 64), std::tuple("down_proj", 64, 32)}) {
    const std::string prefix = mlp + "experts." + name;
    oss.emplace_back(prefix + "_blocks", bytes(DType::kUInt8, {4, n, k / 32, 16}, 0, 255));
    oss.emplace_back(prefix + "_scales", bytes(DType::kUInt8, {4, n, k / 32}, 120, 123));
    oss.emplace_back(prefix + "_bias", bytes(DType::kBFloat16, {4, n}, 0x3a, 0x3b));
  }
  oss.emplace_back(mlp + "router.bias", bytes(DType::kBFloat16, {4}, 0x3a, 0x3b));
  write(oss, "router", R"("model_type": "gpt_oss")");
  EXPECT_EQ(scenarios(), "A16W4-FP A8W4-FP A4W4-FP ");
  EXPECT_EQ(run_json("check " + scratch.path()).size(), 3u);
  const Outcome wrong = run("run " + scratch.path() + " --scenario A16W16");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(contains(wrong.error,
                       "scenario = A16W16: expected A16W4-FP or A8W4-FP or A4W4-FP, for weights stored as "
                       "float4_e2m1"))
      << wrong.error;

  std::vector<std::pair<std::string, TensorView>> gptq;
  for (int e = 0; e < 4; ++e) {
    for (const auto& [name, n, k] :
         {std::tuple("gate_proj", 32, 64), std::tuple("up_proj", 32, 64), std::tuple("down_proj", 64, 32)}) {
      const std::string prefix = mlp + "experts." + std::to_string(e) + "." + name;
      gptq.emplace_back(prefix + ".qweight", bytes(DType::kInt32, {k / 8, n}, 0, 255));
      gptq.emplace_back(prefix + ".qzeros", bytes(DType::kInt32, {k / 32, n / 8}, 0, 255));
      gptq.emplace_back(prefix + ".scales", TensorView(half.data(), DType::kFloat16, {k / 32, n}));
    }
  }
  write(gptq, "gate", R"("quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32})");
  EXPECT_EQ(scenarios(), "A16W4-GROUP A8W4-GROUP ");
}

TEST(Tool, RunNamesWhatIsWrong) {
  const Checkpoint model;
  const std::string path = model.scratch.path();
  EXPECT_TRUE(contains(run("run " + path + " --layer 7").error, "megamoe: layer = 7: expected one of 0, 1"));
  Outcome outcome = run("run " + path + " --input " + model.scratch.file("model.safetensors"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.error, "tensor 'layers.0.hidden_states' is missing")) << outcome.error;

  std::filesystem::resize_file(model.scratch.file("model.safetensors"),
                               std::filesystem::file_size(model.scratch.file("model.safetensors")) - 1);
  outcome = run("run " + path);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.error, "it may be truncated")) << outcome.error;
  model.scratch.write("model.safetensors", "no safetensors file at all");
  outcome = run("run " + path);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.error, "header length = ")) << outcome.error;
}

}  // namespace
}  // namespace megamoe
