// The built tool, run as its users run it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "checkpoint/safetensors.h"
#include "checkpoint/scratch.h"
#include "cli/tool.h"
#include "format/bf16.h"
#include "megamoe/isa.h"

namespace megamoe {
namespace {

using nlohmann::json;
using test::contains;
using test::Outcome;
using test::run;
using test::run_json;

TEST(Tool, Info) {
  const json info = run_json("info");
  EXPECT_EQ(info["isa"]["levels"].size(), static_cast<size_t>(kIsaCount));
  EXPECT_GE(info["topology"]["cores"].get<int>(), 1);
  EXPECT_GE(info["threads_per_rank"].get<int>(), 1);
  EXPECT_EQ(run_json("info --isa generic")["isa"]["chosen"], "generic");
  EXPECT_EQ(run_json("--isa generic info --threads 3")["threads_per_rank"], 3);
  const Outcome text = run("info");
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(contains(text.out, "In use: "));
}

TEST(Tool, WrongArguments) {
  const std::pair<const char*, const char*> cases[] = {
      {"info --isa turbo", "megamoe: isa = turbo: expected one of generic"},
      {"", "subcommand is required"},
      {"fly", ""},
      {"info --threads 0", "--threads"},
      {"info --ranks many", "--ranks"},
      {"info --transport pigeon", "--transport"},
      {"plan --shape 12", "megamoe: --shape = 12: expected HIDDENxINTERMEDIATExEXPERTSxTOPK"},
      {"plan", "--shape"},
      {"check --scenario A1W1", "megamoe: scenario = A1W1: expected one of A16W16"},
      {"check --scenario A16W16,", "megamoe: scenario = : expected one of A16W16"},
      {"check --shape 61x33x8x3 --scenario A8W4-INT",
       "megamoe: scenario = A8W4-INT: quantise: weights have a reduction of 61: expected an even one with "
       "int4"},
      {"check --routing random", "megamoe: --routing = random: expected uniform, zipf or one"},
      {"bench --shape 8x8x4x2 --tokens 1,x", "megamoe: --tokens = 1,x: expected numbers"},
      {"check /nowhere --shared-experts 1",
       "megamoe: --shared-experts = 1: expected none with the weights of a"},
      {"check --combine-quant-mode 2", "--combine-quant-mode"},
      {"run /nowhere", "megamoe: /nowhere does not exist"},
      {"check --profile tpu", "megamoe: profile = \"tpu\": expected one of cpu, ascend_a2_a3"},
      {"vectors /nowhere", "megamoe: /nowhere is not a directory"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_TRUE(contains(outcome.error, message)) << arguments << ": " << outcome.error;
  }
}

TEST(Tool, Plan) {
  const json plans = run_json("plan --shape 64x32x8x2 --ranks 2 --tokens 16");
  ASSERT_EQ(plans.size(), 8u);
  for (const json& plan : plans) {
    EXPECT_TRUE(plan.contains("scenario"));
    EXPECT_TRUE(plan.contains("symmetric memory bytes"));
    EXPECT_EQ(plan["rank"], "0 of 2");
  }
  // 4 experts: 2 panels of 64 x 64 bf16 gate and up columns, 2 panels of 32 x 64.
  EXPECT_EQ(plans[0]["packed weight bytes of a rank"], std::to_string(4 * (64 * 64 * 2 + 32 * 64 * 2)));
}

TEST(Tool, CheckOnEveryLevelAndTransport) {
  for (const IsaInfo& level : isa_levels()) {
    if (!level.runnable) continue;
    for (const char* ranks : {"--ranks 1", "--ranks 2 --transport local", "--ranks 3 --transport local",
                              "--ranks 4 --transport shm"}) {
      for (const char* shape : {"62x34x8x3 --scenario all", "61x33x8x3 --scenario A16W16,A8W8-INT,A8W8-FP"}) {
        const json outcome = run_json("check --tokens 19 --shape " + std::string(shape) + " --isa " +
                                      level.name + " " + ranks);
        EXPECT_EQ(outcome.size(), contains(shape, "all") ? 8u : 3u);
        for (const json& scenario : outcome) {
          EXPECT_TRUE(scenario["first_differing_stage"].is_null())
              << level.name << " " << ranks << scenario.dump(1);
        }
      }
    }
  }
}

/// Scenarios of a result that lists them under "scenario".
std::string scenarios_of(const json& rows) {
  std::string names;
  for (const json& row : rows) names += row["scenario"].get<std::string>() + " ";
  return names;
}

TEST(Tool, ProfilesJudgeALayer) {
  const struct {
    const char *profile, *shape, *scenarios;
  } cases[] = {
      {"ascend_a2_a3", "1024x512x4x2", "A16W16 A8W8-INT A8W4-INT "},
      {"ascend_950", "1024x256x4x2 --shared-experts 1", "A8W8-FP A8W8-FP-E5M2 A8W4-FP A4W4-FP "},
      {"mega_moe_v1", "4096x512x6x6", "A8W8-FP A8W8-FP-E5M2 "},
  };
  for (const auto& [profile, shape, scenarios] : cases) {
    const std::string options = " --ranks 2 --tokens 2 --profile " + std::string(profile) + " --shape ";
    const json checked = run_json("check" + options + shape);
    EXPECT_EQ(scenarios_of(checked), scenarios);
    for (const json& scenario : checked) {
      EXPECT_TRUE(scenario["first_differing_stage"].is_null()) << profile << scenario.dump(1);
    }
    const std::string sizes = std::string(shape).substr(0, std::string(shape).find(' '));
    EXPECT_EQ(scenarios_of(run_json("plan --scenario all" + options + sizes)), scenarios);
    for (const char* command : {"check", "plan", "bench"}) {
      const Outcome outcome = run(command + options + "1000x512x6x6 --scenario " +
                                  std::string(scenarios).substr(0, std::string(scenarios).find(' ')));
      EXPECT_EQ(outcome.code, 2) << command;
      EXPECT_TRUE(contains(outcome.error, "hidden = 1000: expected ")) << outcome.error;
      EXPECT_TRUE(contains(outcome.error, "(profile " + std::string(profile) + ")")) << outcome.error;
    }
  }
  EXPECT_EQ(scenarios_of(run_json("bench --scenario all --profile ascend_950 --ranks 2 --repeat 1 --tokens 2 "
                                  "--shape 1024x256x4x2")["rows"]),
            "A8W8-FP A8W8-FP-E5M2 A8W4-FP A4W4-FP ");
}

TEST(Tool, BenchPrintsCeilings) {
  const json bench = run_json("bench --shape 64x32x8x2 --tokens 1,4 --scenario all --repeat 2 --threads 1");
  ASSERT_EQ(bench["rows"].size(), 16u);
  for (const json& row : bench["rows"]) {
    for (const char* figure : {"ms", "gflops", "weight_gbps", "run_efficiency"}) {
      EXPECT_GT(row[figure].get<double>(), 0) << figure;
    }
    // Pairs whose passes differ do not count, and none may be left.
    EXPECT_LE(row["pairs"], row["calls"]);
    EXPECT_EQ(row["efficiency"].is_null(), row["pairs"] == 0);
    EXPECT_FALSE(row["passes"]["read_gbps"].is_null() && row["passes"]["gflops"].is_null());
    for (const char* ceiling : {"linear1_gflops", "linear2_gflops", "read_gbps"}) {
      EXPECT_GT(row["ceilings"][ceiling].get<double>(), 0) << ceiling;
    }
    EXPECT_EQ(row["kernels"].size(), 2u);
    EXPECT_EQ(row["routing"], "uniform");
  }
}

TEST(Tool, BenchNamesWhatRan) {
  const json rows = run_json(
      "bench --shape 64x32x8x2 --tokens 1 --scenario A8W8-INT,A8W4-INT --repeat 1 --isa generic")["rows"];
  const json name = rows[0]["kernels"][0];
  EXPECT_EQ(rows[0]["kernels"], json({name, name}));
  const std::string decoded = name.get<std::string>() + " on strips of decoded codes";
  EXPECT_EQ(rows[1]["kernels"], json({decoded, decoded}));
}

TEST(Tool, BenchesEveryRoutingOfAList) {
  const json bench =
      run_json("bench --shape 64x32x8x2 --tokens 1,4 --routing uniform,one,zipf --repeat 2 --threads 1");
  ASSERT_EQ(bench["rows"].size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const json& row = bench["rows"][i];
    EXPECT_EQ(row["routing"], i < 2 ? "uniform" : i < 4 ? "one" : "zipf");
    EXPECT_EQ(row["tokens"], i % 2 == 0 ? 1 : 4);
  }
  EXPECT_EQ(bench["rows"][3]["experts"], 2);  // all to the first two
  EXPECT_TRUE(
      contains(run("bench --shape 8x8x4x2 --routing uniform,").error, "--routing = : expected uniform"));
}

TEST(Tool, CliffsComparesNeighbours) {
  const json rows =
      run_json("cliffs --shape 64x32x8x2 --scenario A16W16,A8W4-INT --last 3 --repeat 2 --threads 1");
  // For each scenario and routing three steps, subnormal tokens and weights; then five batches against dense.
  ASSERT_EQ(rows.size(), 2u * (3 * 5 + 5));
  for (const json& row : rows) EXPECT_GT(row["speed"].get<double>(), 0) << row;
  EXPECT_EQ(rows[2]["what"], "one more token, uniform");
  EXPECT_EQ(rows[2]["tokens"], 3);
  EXPECT_EQ(rows[3]["what"], "subnormal tokens, uniform");
  EXPECT_EQ(rows[4]["what"], "subnormal weights, uniform");
  EXPECT_EQ(rows[15]["what"], "all to the same experts, against dense");
  EXPECT_EQ(rows[20]["scenario"], "A8W4-INT");
  // People see the worst of each kind, and all that does not hold.
  const Outcome text = run("cliffs --shape 64x32x8x2 --last 3 --repeat 2 --threads 1 --routing one");
  EXPECT_EQ(text.code, 0);
  size_t lines = 0, bad = 0;
  for (size_t at = 0; (at = text.out.find("A16W16", at)) != std::string::npos; ++at) ++lines;
  for (size_t at = 0; (at = text.out.find("  no\n", at)) != std::string::npos; ++at) ++bad;
  EXPECT_GE(lines, 4u) << text.out;
  EXPECT_LE(lines, 4 + bad) << text.out;
}

TEST(Tool, CliffsOverSeveralRanks) {
  for (const char* transport : {"local", "shm"}) {
    const json rows = run_json(
        "cliffs --shape 64x32x8x2 --last 1 --repeat 1 --threads 1 --ranks 2 --routing one --transport " +
        std::string(transport));
    EXPECT_EQ(rows.size(), 3u + 5u) << transport;
  }
}

TEST(Tool, CeilingsOfThisMachine) {
  const json ceilings = run_json("ceilings --threads 1");
  ASSERT_GE(ceilings["rows"].size(), 2u);
  for (const json& row : ceilings["rows"]) {
    EXPECT_GT(row["one_thread"].get<double>(), 0) << row["what"];
    EXPECT_GT(row["all_threads"].get<double>(), 0) << row["what"];
  }
}

TEST(Tool, RanksWithoutExpertsBench) {
  EXPECT_EQ(run_json("bench --shape 64x32x4x2 --tokens 5 --repeat 2 --ranks 3")["rows"].size(), 1u);
}

TEST(Tool, OutputThatCannotBeWrittenIsAnError) {
  const Outcome outcome = run("info >/dev/full");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.error, "the output could not be written")) << outcome.error;
}

class ToolLevel : public testing::TestWithParam<std::string> {};

TEST_P(ToolLevel, Vectors) {
  const auto named = [](const IsaInfo& level) { return GetParam() == level.name; };
  const IsaInfo& level = *std::find_if(isa_levels().begin(), isa_levels().end(), named);
  if (!level.runnable) GTEST_SKIP() << level.name << ": " << level.reason;
  const std::string vectors = std::string(MEGAMOE_TEST_DATA) + "/vectors";
  for (const char* only : {"mm_", "int8_per_token", "cast_", "decode_", "mx_", "nz_", "ir_", "tp_", "tu_"}) {
    const json outcome = run_json("vectors " + vectors + " --only " + only + " --isa " + level.name);
    EXPECT_EQ(outcome["passed"], outcome["cases"]) << level.name << outcome.dump(1);
    EXPECT_GE(outcome["cases"].get<int>(), 1);
  }
  const json processes = run_json("vectors " + vectors + " --only mm_ --transport shm --isa " + level.name);
  EXPECT_EQ(processes["passed"], processes["cases"]) << level.name << processes.dump(1);
}

std::vector<std::string> level_names() {
  std::vector<std::string> names;
  for (const IsaInfo& level : isa_levels()) names.push_back(level.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Levels, ToolLevel, testing::ValuesIn(level_names()),
                         [](const auto& info) { return info.param; });

TEST(Tool, LimitTablesStandInTheDocument) {
  std::stringstream document;
  document << std::ifstream(std::string(MEGAMOE_SOURCE_DIR) + "/docs/limits.md").rdbuf();
  for (const char* profile : {"cpu", "ascend_a2_a3", "ascend_950", "mega_moe_v1"}) {
    const std::string name = profile;
    const Outcome table = run("limits " + name);
    EXPECT_EQ(table.code, 0);
    EXPECT_TRUE(contains(document.str(), "## " + name + "\n\n" + table.out))
        << "docs/limits.md lacks this table of " << name << ":\n"
        << table.out;
    const json limits = run_json("limits " + name);
    EXPECT_EQ(limits["profile"], name);
    EXPECT_EQ(limits["limits"].size(),
              static_cast<size_t>(std::count(table.out.begin(), table.out.end(), '\n')) - 2);
  }
  EXPECT_EQ(run("limits tpu").error,
            "megamoe: profile = \"tpu\": expected one of cpu, ascend_a2_a3, ascend_950, mega_moe_v1\n");
}

TEST(Tool, FormatTablesStandInTheDocument) {
  std::stringstream document;
  document << std::ifstream(std::string(MEGAMOE_SOURCE_DIR) + "/docs/formats.md").rdbuf();
  const std::string tables = run("info --formats").out;
  const size_t end_of_first = tables.find("\n\n");
  ASSERT_NE(end_of_first, std::string::npos);
  for (const std::string& table : {tables.substr(0, end_of_first + 1), tables.substr(end_of_first + 2)}) {
    EXPECT_TRUE(contains(document.str(), table)) << "docs/formats.md lacks this table:\n" << table;
  }
  const json rows = run_json("info --formats");
  EXPECT_EQ(rows["formats"].size(), 10u);
  EXPECT_EQ(rows["rules"].size(), 21u);
}

TEST(Tool, VectorsWritesOutputsAndErrors) {
  test::Scratch scratch;
  const std::string vectors = std::string(MEGAMOE_TEST_DATA) + "/vectors";
  EXPECT_EQ(run("vectors " + vectors + " --only int8_per_token --out " + scratch.file("out")).code, 0);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.file("out/int8_per_token"))) {
    EXPECT_EQ(std::filesystem::file_size(entry.path()),
              std::filesystem::file_size(vectors + "/int8_per_token/" + entry.path().filename().string()));
    ++files;
  }
  EXPECT_EQ(files, 2);

  std::filesystem::create_directories(scratch.file("cases/strange"));
  std::filesystem::create_directories(scratch.file("cases/broken"));
  scratch.write("cases/strange/case.json", R"({"op": "fly", "attrs": {}, "inputs": {}, "expect": {}})");
  scratch.write("cases/broken/case.json", "{");
  const Outcome outcome = run("vectors " + scratch.file("cases") + " --out " + scratch.file("out"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.out, "op fly is not supported")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "error  broken: ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "0 of 2 cases pass")) << outcome.out;
  std::stringstream text;
  text << std::ifstream(scratch.file("out/strange/error.txt")).rdbuf();
  EXPECT_EQ(text.str(), "op fly is not supported\n");
}

/// A small checkpoint with recorded tokens: hidden 32, expert width 16, 4 experts, top-2, layers 0 and 1.
class Checkpoint {
 public:
  Checkpoint() {
    scratch.write("config.json",
                  R"({"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 32,
                      "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2})");
    std::vector<std::pair<std::string, TensorView>> tensors, recorded;
    for (int layer = 0; layer < 2; ++layer) {
      const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
      tensors.emplace_back(mlp + "gate.weight", values({4, 32}));
      for (int e = 0; e < 4; ++e) {
        const std::string expert = mlp + "experts." + std::to_string(e) + ".";
        tensors.emplace_back(expert + "gate_proj.weight", values({16, 32}));
        tensors.emplace_back(expert + "up_proj.weight", values({16, 32}));
        tensors.emplace_back(expert + "down_proj.weight", values({32, 16}));
      }
      const std::string prefix = "layers." + std::to_string(layer) + ".";
      recorded.emplace_back(prefix + "hidden_states", values({5, 32}));
      recorded.emplace_back(prefix + "topk_ids", TensorView(ids, DType::kInt32, {5, 2}));
      recorded.emplace_back(prefix + "topk_weights", TensorView(weights, DType::kFloat32, {5, 2}));
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
    ASSERT_EQ(result["rows"].size(), 16u);
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
