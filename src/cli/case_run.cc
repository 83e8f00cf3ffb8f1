// Runs a test case with the library: the operators a case may name, and what they wrote.
#include "cli/case_run.h"

#include <algorithm>
#include <iterator>

#include "cli/case_attributes.h"
#include "cli/case_quant.h"
#include "cli/case_routing.h"
#include "cli/layer_job.h"
#include "cli/ranks.h"

namespace megamoe::cli {
namespace {

constexpr std::byte kUntouched{0x5a};

/// Arguments of mega_moe that the library knows; a case with another one is not supported.
constexpr const char* kMegaMoeArgs[] = {"x",
                                        "scales",
                                        "topk_ids",
                                        "topk_weights",
                                        "x_active_mask",
                                        "weight1",
                                        "weight2",
                                        "weight_scales1",
                                        "weight_scales2",
                                        "bias1",
                                        "bias2",
                                        "shared_weight1",
                                        "shared_weight2",
                                        "shared_weight_scales1",
                                        "shared_weight_scales2",
                                        "shared_bias1",
                                        "shared_bias2"};

/// Weights of operators in floating point formats are stored (E, N, K), all others (E, K, N).
bool reduction_is_last(DType dtype) {
  return dtype != DType::kBFloat16 && dtype != DType::kInt8 && dtype != DType::kInt4 &&
         dtype != DType::kInt32;
}

struct Settings {
  BufferConfig config;
  Activation activation;
  DType shared_expert_quant_out_dtype = DType::kUndefined;
  int64_t interleave = 0;  ///< of weight1 and shared_weight1
};

/// Parameters in the operator's order.
void set_parameters(const std::vector<double>& list, Activation& activation) {
  using Field = std::optional<double> Activation::*;
  constexpr Field kClampFirst[] = {&Activation::clamp, &Activation::alpha, &Activation::beta};
  constexpr Field kBetaFirst[] = {&Activation::beta, &Activation::linear_beta};
  const bool situglu = activation.name == "situglu";
  const size_t most = situglu ? std::size(kBetaFirst) : std::size(kClampFirst);
  for (size_t i = 0; i < std::min(list.size(), most); ++i) {
    activation.*(situglu ? kBetaFirst[i] : kClampFirst[i]) = list[i];
  }
}

Result<Settings> read_settings(const Case& test) {
  Settings s;
  BufferConfig& c = s.config;
  std::vector<double> parameters;
  Attributes attributes(test);
  attributes.read("moe_expert_num", c.num_experts);
  attributes.read("num_max_tokens_per_rank", c.num_max_tokens_per_rank);
  attributes.read("max_recv_token_num", c.max_recv_token_num);
  attributes.read("dispatch_quant_mode", c.dispatch_quant_mode);
  attributes.read("dispatch_quant_out_dtype", c.dispatch_quant_out_dtype);
  attributes.read("shared_expert_quant_out_dtype", s.shared_expert_quant_out_dtype);
  attributes.read("combine_quant_mode", c.combine_quant_mode);
  attributes.read("comm_alg", c.comm_alg);
  attributes.read("topk_weights_type", c.topk_weights_type);
  attributes.read("topo_type", c.topo_type);
  attributes.read("rank_num_per_server", c.rank_num_per_server);
  attributes.read("combine_comm_mode", c.combine_comm_mode);
  attributes.read("weight1_interleave", s.interleave);
  attributes.read("profile", c.profile);
  attributes.read("activation", s.activation.name);
  attributes.read("activation_params", parameters);
  MEGAMOE_RETURN_IF_ERROR(attributes.status());
  set_parameters(parameters, s.activation);

  const CaseTensor *x = test.input("x"), *ids = test.input("topk_ids"), *weight1 = test.input("weight1");
  if (x == nullptr || ids == nullptr || weight1 == nullptr || x->shape.size() != 2 ||
      ids->shape.size() != 2 || weight1->shape.size() != 3) {
    return Status(Code::kDataLoss,
                  "x, topk_ids or weight1 is missing: expected tensors of 2, 2 and 3 dimensions");
  }
  c.hidden = x->shape[1];
  c.num_topk = ids->shape[1];
  constexpr int64_t kNibblesPerWord = 8;
  const int64_t n = weight1->shape[reduction_is_last(weight1->dtype) ? 1 : 2];
  c.intermediate_hidden = n * (weight1->dtype == DType::kInt32 ? kNibblesPerWord : 1) / 2;
  return s;
}

TensorView input_view(const Case& test, const char* arg, int rank) {
  const CaseTensor* tensor = test.input(arg, rank);
  return tensor == nullptr ? TensorView{} : tensor->view();
}

/// One linear layer of a rank: `prefix` "" or "shared_", `layer` "1" or "2".
LinearWeights linear(const Case& test, const std::string& prefix, const char* layer, int rank) {
  LinearWeights result;
  if (const CaseTensor* tensor = test.input(prefix + "weight" + layer, rank)) {
    result.weight = {tensor->view()};
    result.k_last = reduction_is_last(tensor->dtype);
  }
  if (const CaseTensor* tensor = test.input(prefix + "weight_scales" + layer, rank))
    result.scale = {tensor->view()};
  if (const CaseTensor* tensor = test.input(prefix + "bias" + layer, rank)) result.bias = {tensor->view()};
  return result;
}

/// Memory of an output that ranks write, whether they are threads or processes.
Result<SharedArray<std::byte>> output_memory(int64_t bytes) {
  auto memory = SharedArray<std::byte>::make(bytes);
  if (memory) std::fill_n(memory->data(), bytes, kUntouched);
  return memory;
}

TensorRef output_ref(const TensorView& like, const SharedArray<std::byte>& memory) {
  TensorRef ref;
  ref.data = memory.data();
  ref.dtype = like.dtype;
  ref.dims = like.dims;
  std::copy(std::begin(like.shape), std::end(like.shape), ref.shape);
  ref.set_contiguous();
  return ref;
}

Result<CaseOutputs> run_mega_moe(const Case& test, const CommonOptions& common) {
  for (const CaseTensor& tensor : test.inputs) {
    const bool known = std::any_of(std::begin(kMegaMoeArgs), std::end(kMegaMoeArgs),
                                   [&](const char* arg) { return tensor.arg == arg; });
    if (!known) return Status(Code::kUnsupported, tensor.arg + " is not supported");
  }
  auto settings = read_settings(test);
  if (!settings) return settings.status();

  const int64_t local_experts = settings->config.num_experts / std::max(1, test.ranks);
  // An error case names no outputs; the call still needs some.
  std::vector<SharedArray<std::byte>> written, spare;
  for (const CaseTensor& tensor : test.expected) {
    auto memory = output_memory(static_cast<int64_t>(tensor.bytes.size()));
    if (!memory) return memory.status();
    written.push_back(std::move(*memory));
  }
  std::vector<CallArgs> calls(static_cast<size_t>(test.ranks));
  for (int r = 0; r < test.ranks; ++r) {
    CallArgs& call = calls[static_cast<size_t>(r)];
    call.x = input_view(test, "x", r);
    call.scales = input_view(test, "scales", r);
    call.topk_ids = input_view(test, "topk_ids", r);
    call.topk_weights = input_view(test, "topk_weights", r);
    call.x_active_mask = input_view(test, "x_active_mask", r);
    for (size_t i = 0; i < test.expected.size(); ++i) {
      const CaseTensor& tensor = test.expected[i];
      if (tensor.rank != r) continue;
      if (tensor.arg == "y") call.y = output_ref(tensor.view(), written[i]);
      if (tensor.arg == "expert_token_nums") call.expert_token_nums = output_ref(tensor.view(), written[i]);
    }
    if (!test.expects_error()) continue;
    const int64_t tokens = call.x.dims > 0 ? call.x.shape[0] : 0;
    const TensorView y(nullptr, DType::kBFloat16, {tokens, settings->config.hidden});
    const TensorView nums(nullptr, DType::kInt32, {local_experts});
    for (const auto& [like, out] : {std::pair{&y, &call.y}, std::pair{&nums, &call.expert_token_nums}}) {
      auto memory = output_memory(std::max<int64_t>(1, like->elements() * dtype_bits(like->dtype) / 8));
      if (!memory) return memory.status();
      spare.push_back(std::move(*memory));
      *out = output_ref(*like, spare.back());
    }
  }

  BufferOptions options;
  options.threads = common.threads > 0 ? common.threads : 1;
  options.isa = common.isa;
  MEGAMOE_RETURN_IF_ERROR(run_on_ranks(common.transport, test.ranks, [&](const Group& group) -> Status {
    auto buffer = SymmBuffer::create(group, settings->config, options);
    if (!buffer) return buffer.status();
    Layer layer;
    layer.activation = settings->activation;
    layer.weight1 = linear(test, "", "1", group.rank());
    layer.weight2 = linear(test, "", "2", group.rank());
    layer.shared_weight1 = linear(test, "shared_", "1", group.rank());
    layer.shared_weight2 = linear(test, "shared_", "2", group.rank());
    layer.weight1.interleave = layer.shared_weight1.interleave = settings->interleave;
    layer.shared_expert_quant_out_dtype = settings->shared_expert_quant_out_dtype;
    auto op = MegaMoe::create(*buffer, std::move(layer));
    if (!op) return (*buffer)->refuse_call(op.status());
    return (*op)->run(calls[static_cast<size_t>(group.rank())]);
  }));
  CaseOutputs outputs;
  for (const SharedArray<std::byte>& memory : written)
    outputs.emplace_back(memory.data(), memory.data() + memory.size());
  return outputs;
}

constexpr struct {
  const char* op;
  Result<CaseOutputs> (*run)(const Case&, const CommonOptions&);
} kOperators[] = {
    {"mega_moe", run_mega_moe}, {"cast", run_cast},
    {"decode", run_decode},     {"int8_per_token", run_int8_per_token},
    {"layout", run_layout},     {"mx_dequant", run_mx_dequant},
    {"mx_quant", run_mx_quant},
};

}  // namespace

Result<CaseOutputs> run_case(const Case& test, const CommonOptions& common) {
  for (const auto& row : kOperators) {
    if (test.op == row.op) return row.run(test, common);
  }
  if (auto result = run_routing_case(test, {.threads = common.threads, .isa = common.isa})) {
    return *std::move(result);
  }
  return Status(Code::kUnsupported, "op " + test.op + " is not supported");
}

}  // namespace megamoe::cli
