// Test cases of the routing operators.
#include "cli/case_routing.h"

#include <cmath>
#include <utility>

#include "megamoe/routing.h"

namespace megamoe::cli {
namespace {

constexpr std::byte kUntouched{0xff};  // NaN in every float format

TensorView input_view(const Case& test, const char* arg) {
  const CaseTensor* tensor = test.input(arg);
  return tensor == nullptr ? TensorView{} : tensor->view();
}

/// Reads attributes until the first one of a wrong type.
class Attributes {
 public:
  explicit Attributes(const Case& test) : test_(test) {}
  void read(const char* name, int64_t& out) { take(test_.integer(name, out), out); }
  void read(const char* name, bool& out) { take(test_.flag(name, out), out); }
  void read(const char* name, std::string& out) { take(test_.text(name, out), out); }
  void read(const char* name, std::optional<int64_t>& out) {
    int64_t value = 0;
    read(name, value);
    const auto attr = test_.attrs.find(name);
    if (attr != test_.attrs.end() && std::holds_alternative<int64_t>(attr->second)) out = value;
  }
  void read(const char* name, std::vector<int64_t>& out) {
    std::vector<double> numbers;
    take(test_.numbers(name), numbers);
    for (double number : numbers) out.push_back(std::llround(number));
  }
  const Status& status() const { return status_; }

 private:
  template <class T>
  void take(Result<T> result, T& out) {
    if (!status_) return;
    if (result) {
      out = std::move(*result);
    } else {
      status_ = result.status();
    }
  }
  const Case& test_;
  Status status_;
};

/// Memory of one output under the name that cases use.
struct NamedOutput {
  const char* name;
  TensorRef* tensor;
  std::vector<std::byte> bytes;

  NamedOutput(const char* output_name, TensorRef& output) : name(output_name), tensor(&output) {
    if (!output.present()) return;
    bytes.resize(static_cast<size_t>(output.elements() * dtype_bits(output.dtype) / 8), kUntouched);
    output.data = bytes.data();
  }
};

/// What the case expects, out of what there is.
Result<CaseOutputs> in_order(const Case& test, std::vector<NamedOutput>& outputs) {
  CaseOutputs result;
  for (const CaseTensor& expected : test.expected) {
    for (NamedOutput& output : outputs) {
      if (expected.arg != output.name) continue;
      const TensorView view = megamoe::view(*output.tensor);
      const std::vector<int64_t> shape(view.shape, view.shape + view.dims);
      if (!view.present() || view.dtype != expected.dtype || shape != expected.shape) {
        return Status(Code::kDataLoss, expected.arg + " is " + dtype_name(view.dtype) + " " +
                                           view.shape_text() + ": expected " + dtype_name(expected.dtype) +
                                           " " + expected.view().shape_text());
      }
      result.push_back(std::move(output.bytes));
    }
  }
  if (result.size() == test.expected.size()) return result;
  return Status(Code::kDataLoss, "the case expects an output that " + test.op + " does not have");
}

RoutingOptions options_of(const CommonOptions& common) {
  return {.threads = common.threads, .isa = common.isa};
}

}  // namespace

Result<CaseOutputs> run_moe_init_routing_v3(const Case& test, const CommonOptions& common) {
  MoeInitRoutingArgs args;
  args.x = input_view(test, "x");
  args.expert_idx = input_view(test, "expert_idx");
  args.scale = input_view(test, "scale");
  args.offset = input_view(test, "offset");
  Attributes attributes(test);
  attributes.read("active_num", args.active_num);
  attributes.read("expert_capacity", args.expert_capacity);
  attributes.read("expert_num", args.expert_num);
  attributes.read("drop_pad_mode", args.drop_pad_mode);
  attributes.read("expert_tokens_num_type", args.expert_tokens_num_type);
  attributes.read("expert_tokens_num_flag", args.expert_tokens_num_flag);
  attributes.read("quant_mode", args.quant_mode);
  attributes.read("active_expert_range", args.active_expert_range);
  attributes.read("row_idx_type", args.row_idx_type);
  attributes.read("mx_scale", args.mx_scale);
  MEGAMOE_RETURN_IF_ERROR(attributes.status());
  auto outputs = moe_init_routing_v3_outputs(args);
  if (!outputs) return outputs.status();
  std::vector<NamedOutput> named;
  named.emplace_back("expanded_x", outputs->expanded_x);
  named.emplace_back("expanded_row_idx", outputs->expanded_row_idx);
  named.emplace_back("expert_tokens_count_or_cumsum", outputs->expert_tokens_count_or_cumsum);
  named.emplace_back("expanded_scale", outputs->expanded_scale);
  MEGAMOE_RETURN_IF_ERROR(moe_init_routing_v3(args, *outputs, options_of(common)));
  return in_order(test, named);
}

Result<CaseOutputs> run_moe_token_permute(const Case& test, const CommonOptions& common) {
  MoeTokenPermuteArgs args;
  args.tokens = input_view(test, "tokens");
  args.indices = input_view(test, "indices");
  Attributes attributes(test);
  attributes.read("num_out_tokens", args.num_out_tokens);
  attributes.read("padded_mode", args.padded_mode);
  attributes.read("quant_mode", args.quant_mode);
  attributes.read("mx_scale", args.mx_scale);
  MEGAMOE_RETURN_IF_ERROR(attributes.status());
  auto outputs = moe_token_permute_outputs(args);
  if (!outputs) return outputs.status();
  std::vector<NamedOutput> named;
  named.emplace_back("permuted_tokens", outputs->permuted_tokens);
  named.emplace_back("sorted_indices", outputs->sorted_indices);
  named.emplace_back("expanded_scale", outputs->expanded_scale);
  MEGAMOE_RETURN_IF_ERROR(moe_token_permute(args, *outputs, options_of(common)));
  return in_order(test, named);
}

Result<CaseOutputs> run_moe_token_permute_grad(const Case& test, const CommonOptions& common) {
  MoeTokenPermuteGradArgs args;
  args.grad_permuted_tokens = input_view(test, "grad_permuted_tokens");
  args.sorted_indices = input_view(test, "sorted_indices");
  Attributes attributes(test);
  attributes.read("num_topk", args.num_topk);
  attributes.read("padded_mode", args.padded_mode);
  MEGAMOE_RETURN_IF_ERROR(attributes.status());
  auto outputs = moe_token_permute_grad_outputs(args);
  if (!outputs) return outputs.status();
  std::vector<NamedOutput> named;
  named.emplace_back("grad_tokens", outputs->grad_tokens);
  MEGAMOE_RETURN_IF_ERROR(moe_token_permute_grad(args, *outputs, options_of(common)));
  return in_order(test, named);
}

Result<CaseOutputs> run_moe_token_unpermute(const Case& test, const CommonOptions& common) {
  MoeTokenUnpermuteArgs args;
  args.permuted_tokens = input_view(test, "permuted_tokens");
  args.sorted_indices = input_view(test, "sorted_indices");
  args.probs = input_view(test, "probs");
  Attributes attributes(test);
  attributes.read("padded_mode", args.padded_mode);
  MEGAMOE_RETURN_IF_ERROR(attributes.status());
  auto outputs = moe_token_unpermute_outputs(args);
  if (!outputs) return outputs.status();
  std::vector<NamedOutput> named;
  named.emplace_back("out", outputs->out);
  MEGAMOE_RETURN_IF_ERROR(moe_token_unpermute(args, *outputs, options_of(common)));
  return in_order(test, named);
}

Result<CaseOutputs> run_moe_token_unpermute_grad(const Case& test, const CommonOptions& common) {
  MoeTokenUnpermuteGradArgs args;
  args.permuted_tokens = input_view(test, "permuted_tokens");
  args.grad_unpermuted_tokens = input_view(test, "grad_unpermuted_tokens");
  args.sorted_indices = input_view(test, "sorted_indices");
  args.probs = input_view(test, "probs");
  Attributes attributes(test);
  attributes.read("padded_mode", args.padded_mode);
  MEGAMOE_RETURN_IF_ERROR(attributes.status());
  auto outputs = moe_token_unpermute_grad_outputs(args);
  if (!outputs) return outputs.status();
  std::vector<NamedOutput> named;
  named.emplace_back("permuted_grad", outputs->permuted_grad);
  named.emplace_back("probs_grad", outputs->probs_grad);
  MEGAMOE_RETURN_IF_ERROR(moe_token_unpermute_grad(args, *outputs, options_of(common)));
  return in_order(test, named);
}

}  // namespace megamoe::cli
