// Expert layers of checkpoints in each known naming scheme, and checkpoints that contradict their config.
#include "checkpoint/moe_checkpoint.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "checkpoint/scratch.h"

namespace megamoe::checkpoint {
namespace {

using test::Scratch;

constexpr const char* kConfig =
    R"({"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 8, "moe_intermediate_size": 4,
        "intermediate_size": 99, "num_experts": 3, "num_experts_per_tok": 2, "hidden_act": "silu"})";

/// Tensors of a test checkpoint; element i of the n-th tensor is 100 n + i.
struct Builder {
  std::vector<std::pair<std::string, TensorView>> tensors;
  std::vector<std::unique_ptr<uint16_t[]>> memory;

  void add(const std::string& name, std::initializer_list<int64_t> shape) {
    TensorView t(nullptr, DType::kBFloat16, shape);
    memory.push_back(std::make_unique<uint16_t[]>(static_cast<size_t>(t.elements())));
    for (int64_t i = 0; i < t.elements(); ++i) {
      memory.back()[static_cast<size_t>(i)] =
          static_cast<uint16_t>(100 * memory.size() + static_cast<size_t>(i));
    }
    t.data = memory.back().get();
    tensors.emplace_back(name, t);
  }
  void write(const Scratch& scratch, const char* config = kConfig) const {
    ASSERT_TRUE(write_safetensors(scratch.file("model.safetensors"), tensors));
    scratch.write("config.json", config);
  }
};

uint16_t first(const TensorView& t) {
  return *static_cast<const uint16_t*>(t.data);
}

TEST(MoeCheckpoint, OneTensorPerExpert) {
  const char* const schemes[][4] = {
      {"mlp.experts.", ".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"},
      {"block_sparse_moe.experts.", ".w1.weight", ".w3.weight", ".w2.weight"}};
  for (const auto& [experts, gate, up, down] : schemes) {
    Scratch scratch;
    Builder builder;
    const std::string layer = "model.layers.1.";
    builder.add(layer + std::string(experts, std::string(experts).find('.')) + ".gate.weight", {3, 8});
    for (int e = 0; e < 3; ++e) {
      builder.add(layer + experts + std::to_string(e) + gate, {4, 8});
      builder.add(layer + experts + std::to_string(e) + up, {4, 8});
      builder.add(layer + experts + std::to_string(e) + down, {8, 4});
    }
    builder.write(scratch);
    auto model = MoeCheckpoint::open(scratch.path());
    ASSERT_TRUE(model) << model.status().message();
    EXPECT_EQ((*model)->layers(), std::vector<int64_t>{1});
    EXPECT_EQ((*model)->config().hidden, 8);
    EXPECT_EQ((*model)->config().intermediate, 4);
    EXPECT_EQ((*model)->config().top_k, 2);
    EXPECT_EQ((*model)->config().activation.name, "swiglu");
    auto found = (*model)->layer(1);
    ASSERT_TRUE(found) << found.status().message();
    EXPECT_TRUE(found->weight1.k_last);
    ASSERT_EQ(found->weight1.weight.size(), 3u);
    ASSERT_EQ(found->weight1.up.size(), 3u);
    EXPECT_EQ(first(found->weight1.weight[0]), 200);
    EXPECT_EQ(first(found->weight1.up[1]), 600);
    EXPECT_EQ(first(found->weight2.weight[2]), 1000);
    const LinearWeights part = expert_range(found->weight1, 1, 2);
    EXPECT_EQ(part.weight.size(), 2u);
    EXPECT_EQ(first(part.up[0]), 600);
    EXPECT_EQ((*model)->layer(0).status().message(), "layer = 0: expected one of 1");
  }
}

TEST(MoeCheckpoint, FusedInBothOrientations) {
  for (bool last : {true, false}) {
    Scratch scratch;
    Builder builder;
    builder.add("model.layers.0.mlp.gate.weight", {3, 8});
    // 2 * intermediate equals hidden here, so that only down_proj tells the orientation.
    builder.add("model.layers.0.mlp.experts.gate_up_proj", {3, 8, 8});
    if (last) {
      builder.add("model.layers.0.mlp.experts.down_proj", {3, 8, 4});
    } else {
      builder.add("model.layers.0.mlp.experts.down_proj", {3, 4, 8});
    }
    builder.write(scratch);
    auto model = MoeCheckpoint::open(scratch.file("model.safetensors"));
    ASSERT_TRUE(model) << model.status().message();
    auto layer = (*model)->layer(0);
    ASSERT_TRUE(layer) << layer.status().message();
    EXPECT_EQ(layer->weight1.k_last, last);
    EXPECT_EQ(layer->weight2.k_last, last);
    EXPECT_TRUE(layer->weight1.up.empty());
    const LinearWeights part = expert_range(layer->weight1, 1, 2);
    EXPECT_EQ(part.weight[0].shape_text(), "(2, 8, 8)");
    EXPECT_EQ(first(part.weight[0]), 200 + 64);
  }
}

TEST(MoeCheckpoint, ShapesThatContradictTheConfig) {
  Scratch scratch;
  Builder builder;
  builder.add("model.layers.0.mlp.gate.weight", {3, 8});
  builder.add("model.layers.0.mlp.experts.gate_up_proj", {3, 8, 6});
  builder.add("model.layers.0.mlp.experts.down_proj", {3, 8, 4});
  builder.write(scratch);
  auto model = MoeCheckpoint::open(scratch.path());
  ASSERT_TRUE(model) << model.status().message();
  const Status status = (*model)->layer(0).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_EQ(status.message(),
            scratch.file("model.safetensors") +
                ": tensor 'model.layers.0.mlp.experts.gate_up_proj' has shape (3, 8, 6): expected (3, 8, 8) "
                "(output, input) or both tensors (input, output)");
}

TEST(MoeCheckpoint, BrokenConfig) {
  Scratch scratch;
  Builder builder;
  builder.add("model.layers.0.mlp.experts.gate_up_proj", {3, 8, 8});
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "expected an object"},
      {"{", "not valid JSON"},
      {R"({"num_hidden_layers": 2})", "hidden_size is missing"},
      {R"({"num_hidden_layers": -2, "hidden_size": 8})", "num_hidden_layers = -2: expected 1 to 65536"},
      {R"({"num_hidden_layers": 2147483648, "hidden_size": 8})",
       "num_hidden_layers = 2147483648: expected 1 to 65536"},
      {R"({"num_hidden_layers": 2, "hidden_size": "8"})", "hidden_size = \"8\": expected 1 to 2147483648"},
      {R"({"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 4, "num_local_experts": 3,
           "num_experts_per_tok": 4})",
       "num_experts_per_tok = 4: expected at most 3 experts"},
      {R"({"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 4, "num_local_experts": 3,
           "num_experts_per_tok": 2, "hidden_act": "relu"})",
       "hidden_act = \"relu\": expected silu"},
  };
  for (const auto& [config, message] : cases) {
    builder.write(scratch, config);
    const Status status = MoeCheckpoint::open(scratch.path()).status();
    EXPECT_FALSE(status.is_ok());
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
  }
  std::filesystem::remove(scratch.file("config.json"));
  EXPECT_NE(MoeCheckpoint::open(scratch.path()).status().message().find("config.json cannot be opened"),
            std::string::npos);
}

TEST(MoeCheckpoint, NoExperts) {
  Scratch scratch;
  Builder builder;
  builder.add("model.embed_tokens.weight", {3, 8});
  builder.write(scratch);
  EXPECT_EQ(MoeCheckpoint::open(scratch.path()).status().code(), Code::kUnsupported);
}

TEST(ExpertRange, CutsEveryListAndKeepsTheRest) {
  alignas(8) static char memory[2048];
  LinearWeights all;
  all.weight = {TensorView(memory, DType::kInt4, {5, 64, 8})};
  all.scale_group = 32;
  all.scale = {TensorView(memory, DType::kFloat16, {5, 8, 2})};
  all.zero = {TensorView(memory, DType::kInt8, {5, 8, 2})};
  all.bias = all.added_bias = {TensorView(memory, DType::kFloat32, {5, 8})};
  all.interleave = 4;
  const LinearWeights part = expert_range(all, 2, 3);
  for (const auto* list : {&part.weight, &part.scale, &part.zero, &part.bias, &part.added_bias}) {
    ASSERT_EQ(list->size(), 1u);
    EXPECT_EQ((*list)[0].shape[0], 3);
  }
  EXPECT_EQ(part.weight[0].data, memory + 2 * 64 * 8 / 2);
  EXPECT_EQ(part.zero[0].data, memory + 2 * 16);
  EXPECT_EQ(part.scale_group, 32);
  EXPECT_EQ(part.interleave, 4);
}

// FP8 weights with the scales of their blocks, gate before up in the scales of Linear1.
TEST(MoeCheckpoint, BlockScales) {
  constexpr const char* kWide =
      R"({"model_type": "deepseek", "num_hidden_layers": 1, "hidden_size": 200, "moe_intermediate_size": 130,
          "n_routed_experts": 2, "num_experts_per_tok": 1, "hidden_act": "silu"})";
  const std::vector<uint8_t> codes(200 * 130, 0x38);
  std::vector<std::vector<float>> scales;
  Builder builder;
  builder.add("model.layers.0.mlp.gate.weight", {2, 200});
  for (int e = 0; e < 2; ++e) {
    const std::string expert = "model.layers.0.mlp.experts." + std::to_string(e);
    for (const auto& [name, rows, columns] : {std::tuple{".gate_proj.weight", 130, 200},
                                              {".up_proj.weight", 130, 200},
                                              {".down_proj.weight", 200, 130}}) {
      builder.tensors.emplace_back(expert + name,
                                   TensorView(codes.data(), DType::kFloat8E4M3, {rows, columns}));
      scales.push_back({});
      for (int i = 0; i < 4; ++i)
        scales.back().push_back(static_cast<float>(10 * scales.size()) + static_cast<float>(i));
    }
  }
  size_t next = 0;
  for (int e = 0; e < 2; ++e) {
    for (const char* name : {".gate_proj", ".up_proj", ".down_proj"}) {
      builder.tensors.emplace_back(
          "model.layers.0.mlp.experts." + std::to_string(e) + name + ".weight_scale_inv",
          TensorView(scales[next++].data(), DType::kFloat32, {2, 2}));
    }
  }
  Scratch scratch;
  builder.write(scratch, kWide);
  auto model = MoeCheckpoint::open(scratch.path());
  ASSERT_TRUE(model) << model.status().message();
  auto layer = (*model)->layer(0);
  ASSERT_TRUE(layer) << layer.status().message();
  EXPECT_EQ(layer->weight1.scale_group, 128);
  ASSERT_EQ(layer->weight1.scale.size(), 1u);
  EXPECT_EQ(layer->weight1.scale[0].shape_text(), "(2, 4, 2)");
  const auto* values = static_cast<const float*>(layer->weight1.scale[0].data) + 8;
  EXPECT_EQ(std::vector<float>(values, values + 8), (std::vector<float>{40, 41, 42, 43, 50, 51, 52, 53}));
  EXPECT_EQ(*static_cast<const float*>(layer->weight2.scale[0].data), 30);
  EXPECT_TRUE(PackedWeights::pack_linear1(layer->weight1));
  EXPECT_TRUE(PackedWeights::pack_linear2(layer->weight2));
  const LinearWeights last = expert_range(layer->weight1, 1, 1);
  EXPECT_EQ(last.scale_group, 128);
  EXPECT_EQ(*static_cast<const float*>(last.scale[0].data), 40);

  builder.tensors.back().second = TensorView(scales[0].data(), DType::kFloat32, {2, 1});
  builder.write(scratch, kWide);
  model = MoeCheckpoint::open(scratch.path());
  ASSERT_TRUE(model);
  layer = (*model)->layer(0);
  ASSERT_FALSE(layer);
  EXPECT_EQ(layer.status().message(),
            scratch.file("model.safetensors") +
                ": tensor 'model.layers.0.mlp.experts.1.down_proj.weight_scale_inv' has shape (2, 1): "
                "expected (2, 2)");
}

}  // namespace
}  // namespace megamoe::checkpoint
