// The reference against the committed test cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/case_compare.h"
#include "cli/case_file.h"
#include "cli/case_routing.h"
#include "megamoe/reference.h"

namespace megamoe::reference {
namespace {

const std::string kVectors = std::string(MEGAMOE_TEST_DATA) + "/vectors";

std::vector<std::string> names(const std::string& prefix) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(kVectors)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(prefix, 0) == 0) found.push_back(name);
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// A result with memory of the expected size, filled with a pattern that no case expects.
struct Output {
  const cli::CaseTensor* expected;
  std::vector<std::byte> bytes;

  explicit Output(const cli::CaseTensor& tensor)
      : expected(&tensor), bytes(tensor.bytes.size(), std::byte{0x5a}) {}
  TensorRef ref() {
    TensorRef ref;
    const TensorView view = expected->view();
    ref.data = bytes.data();
    ref.dtype = view.dtype;
    ref.dims = view.dims;
    std::copy(std::begin(view.shape), std::end(view.shape), ref.shape);
    ref.set_contiguous();
    return ref;
  }
};

template <class T>
T get(Result<T> result) {
  EXPECT_TRUE(result) << result.status().message();
  return result ? *result : T{};
}

// Weights of the float scenarios are (E, N, K), those of the others (E, K, N).
bool k_last(const cli::CaseTensor& weight) {
  return weight.dtype == DType::kFloat8E4M3 || weight.dtype == DType::kFloat8E5M2 ||
         weight.dtype == DType::kFloat4E2M1;
}

int64_t linear1_width(const cli::Case& test) {
  const cli::CaseTensor& weight1 = *test.input("weight1");
  if (k_last(weight1)) return weight1.shape[1];
  return weight1.shape[2] * (weight1.dtype == DType::kInt32 ? 8 : 1);
}

BufferConfig config_of(const cli::Case& test) {
  const auto integer = [&](const char* attr) { return get(test.integer(attr, 0)); };
  const TensorView x = test.input("x")->view();
  BufferConfig config;
  config.num_experts = integer("moe_expert_num");
  config.num_max_tokens_per_rank = integer("num_max_tokens_per_rank");
  config.num_topk = test.input("topk_ids")->view().shape[1];
  config.hidden = x.shape[1];
  config.intermediate_hidden = linear1_width(test) / 2;
  config.max_recv_token_num = integer("max_recv_token_num");
  config.dispatch_quant_mode = static_cast<int>(integer("dispatch_quant_mode"));
  config.dispatch_quant_out_dtype =
      get(dtype_from_op_code(static_cast<int>(integer("dispatch_quant_out_dtype"))));
  config.combine_quant_mode = static_cast<int>(integer("combine_quant_mode"));
  config.topk_weights_type = static_cast<int>(integer("topk_weights_type"));
  config.combine_comm_mode = static_cast<int>(integer("combine_comm_mode"));
  config.topo_type = static_cast<int>(integer("topo_type"));
  config.rank_num_per_server = static_cast<int>(integer("rank_num_per_server"));
  config.profile = get(test.text("profile", "cpu"));
  return config;
}

Activation activation_of(const cli::Case& test) {
  Activation activation;
  activation.name = get(test.text("activation", "swiglu"));
  const std::vector<double> list = get(test.numbers("activation_params"));
  const auto at = [&](size_t i) { return i < list.size() ? std::optional<double>(list[i]) : std::nullopt; };
  if (activation.name == "situglu") {
    activation.beta = at(0);
    activation.linear_beta = at(1);
  } else {
    activation.clamp = at(0);
    activation.alpha = at(1);
    activation.beta = at(2);
  }
  return activation;
}

RankInput rank_of(const cli::Case& test, int rank) {
  const auto view = [&](const std::string& arg) {
    const cli::CaseTensor* tensor = test.input(arg, rank);
    return tensor == nullptr ? TensorView{} : tensor->view();
  };
  const auto list = [&](const std::string& arg) {
    const cli::CaseTensor* tensor = test.input(arg, rank);
    return tensor == nullptr ? std::vector<TensorView>{} : std::vector<TensorView>{tensor->view()};
  };
  const auto weights = [&](const std::string& prefix, const std::string& index) {
    LinearWeights weights;
    weights.weight = list(prefix + "weight" + index);
    weights.scale = list(prefix + "weight_scales" + index);
    weights.bias = list(prefix + "bias" + index);
    const cli::CaseTensor* tensor = test.input(prefix + "weight" + index, rank);
    weights.k_last = tensor != nullptr && k_last(*tensor);
    return weights;
  };
  RankInput input;
  input.call.x = view("x");
  input.call.scales = view("scales");
  input.call.topk_ids = view("topk_ids");
  input.call.topk_weights = view("topk_weights");
  input.call.x_active_mask = view("x_active_mask");
  input.weight1 = weights("", "1");
  input.weight2 = weights("", "2");
  input.shared_weight1 = weights("shared_", "1");
  input.shared_weight2 = weights("shared_", "2");
  input.weight1.interleave = input.shared_weight1.interleave = get(test.integer("weight1_interleave", 0));
  input.shared_expert_quant_out_dtype =
      get(dtype_from_op_code(static_cast<int>(get(test.integer("shared_expert_quant_out_dtype", 28)))));
  return input;
}

class MegaMoeVectors : public testing::TestWithParam<std::string> {};

TEST_P(MegaMoeVectors, MatchesExpected) {
  Result<cli::Case> test = cli::load_case(kVectors + "/" + GetParam());
  ASSERT_TRUE(test) << test.status().message();
  ASSERT_EQ(test->op, "mega_moe");
  std::vector<RankInput> ranks;
  for (int r = 0; r < test->ranks; ++r) ranks.push_back(rank_of(*test, r));
  std::vector<Output> outputs;
  for (const cli::CaseTensor& expected : test->expected) outputs.emplace_back(expected);
  for (Output& output : outputs) {
    CallArgs& call = ranks[output.expected->rank].call;
    (output.expected->arg == "y" ? call.y : call.expert_token_nums) = output.ref();
  }
  const Status status = mega_moe(config_of(*test), activation_of(*test), ranks);
  ASSERT_TRUE(status) << status.message();
  for (const Output& output : outputs) {
    const cli::CompareResult result = cli::compare(*output.expected, output.bytes);
    EXPECT_TRUE(result.pass) << result.message;
    RecordProperty(output.expected->key, result.message.empty() ? "equal" : result.message);
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, MegaMoeVectors, testing::ValuesIn(names("mm_")),
                         [](const auto& info) { return info.param; });

std::vector<std::string> routing_names() {
  std::vector<std::string> found;
  for (const char* prefix : {"ir_", "tp_", "tu_", "err_ir_", "err_tp_"}) {
    for (std::string& name : names(prefix)) found.push_back(std::move(name));
  }
  return found;
}

class RoutingVectors : public testing::TestWithParam<std::string> {};

TEST_P(RoutingVectors, MatchesExpected) {
  Result<cli::Case> test = cli::load_case(kVectors + "/" + GetParam());
  ASSERT_TRUE(test) << test.status().message();
  const cli::RoutingStandIns operators = {moe_init_routing_v3,      moe_token_permute,
                                          moe_token_permute_grad,   moe_token_unpermute,
                                          moe_token_unpermute_grad, moe_gating_top_k};
  const auto outputs = cli::run_routing_case(*test, {}, &operators);
  ASSERT_TRUE(outputs) << test->op;
  if (test->expects_error()) {
    EXPECT_NE(outputs->status().message().find(test->error_arg), std::string::npos)
        << outputs->status().message();
    return;
  }
  ASSERT_TRUE(*outputs) << outputs->status().message();
  const cli::CaseOutputs& bytes = outputs->value();
  ASSERT_EQ(bytes.size(), test->expected.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    const cli::CompareResult result = cli::compare(test->expected[i], bytes[i]);
    EXPECT_TRUE(result.pass) << test->expected[i].key << ": " << result.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, RoutingVectors, testing::ValuesIn(routing_names()),
                         [](const auto& info) { return info.param; });

class MegaMoeErrors : public testing::TestWithParam<std::string> {};

TEST_P(MegaMoeErrors, NameTheArgument) {
  Result<cli::Case> test = cli::load_case(kVectors + "/" + GetParam());
  ASSERT_TRUE(test) << test.status().message();
  ASSERT_EQ(test->op, "mega_moe");
  ASSERT_FALSE(test->error_arg.empty());
  const BufferConfig config = config_of(*test);
  std::vector<RankInput> ranks;
  std::vector<std::vector<uint16_t>> y;
  for (int r = 0; r < test->ranks; ++r) {
    ranks.push_back(rank_of(*test, r));
    const int64_t tokens = ranks.back().call.x.shape[0];
    y.emplace_back(static_cast<size_t>(tokens * config.hidden), uint16_t{0x5a5a});
    ranks.back().call.y = TensorRef(y.back().data(), DType::kBFloat16, {tokens, config.hidden});
  }
  const Status status = mega_moe(config, activation_of(*test), ranks);
  EXPECT_FALSE(status.is_ok());
  EXPECT_NE(status.message().find(test->error_arg), std::string::npos) << status.message();
  RecordProperty("message", status.message());
  for (const std::vector<uint16_t>& row : y) EXPECT_EQ(row, std::vector<uint16_t>(row.size(), 0x5a5a));
}

INSTANTIATE_TEST_SUITE_P(Vectors, MegaMoeErrors, testing::ValuesIn(names("err_mm_")),
                         [](const auto& info) { return info.param; });

TEST(Int8PerTokenVectors, MatchesExpected) {
  Result<cli::Case> test = cli::load_case(kVectors + "/int8_per_token");
  ASSERT_TRUE(test) << test.status().message();
  ASSERT_EQ(test->expected.size(), 2u);
  std::vector<Output> outputs;
  for (const cli::CaseTensor& expected : test->expected) outputs.emplace_back(expected);
  Output& scale = outputs[outputs[0].expected->arg == "scale" ? 0 : 1];
  Output& codes = outputs[outputs[0].expected->arg == "scale" ? 1 : 0];
  const Status status = int8_per_token(test->input("x")->view(), codes.ref(), scale.ref());
  ASSERT_TRUE(status) << status.message();
  for (const Output& output : outputs) {
    const cli::CompareResult result = cli::compare(*output.expected, output.bytes);
    EXPECT_TRUE(result.pass) << result.message;
  }
}

}  // namespace
}  // namespace megamoe::reference
