// Calls of the routing operators: check, let Python make the outputs, run without the interpreter lock.
#include "routing.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "megamoe/routing.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace megamoe::python {
namespace {

TensorView view_of(const Input* input) {
  return input == nullptr ? TensorView{} : input->view;
}

RoutingOptions options_of(int threads, const std::optional<std::string>& isa) {
  RoutingOptions options;
  options.threads = threads;
  if (isa) options.isa = value_or_raise(isa_from_name(*isa));
  return options;
}

/// Outputs of one call, in memory that Python makes.
class Made {
 public:
  explicit Made(nb::callable make) : make_(std::move(make)) {}

  /// Gives a described output its memory.
  void fill(const char* name, TensorRef& output) {
    nb::list shape;
    for (int i = 0; i < output.dims; ++i) shape.append(output.shape[i]);
    nb::object made = make_(name, dtype_name(output.dtype), nb::tuple(shape));
    if (!output.present()) return;
    output = nb::cast<const Output&>(made).ref;
    alive_.push_back(std::move(made));
  }

 private:
  nb::callable make_;
  std::vector<nb::object> alive_;
};

template <class Args, class Outputs>
void run(Status (*op)(const Args&, const Outputs&, const RoutingOptions&), const Args& args,
         const Outputs& outputs, const RoutingOptions& options) {
  Status status = Status::ok();
  {
    nb::gil_scoped_release release;
    status = op(args, outputs, options);
  }
  raise_if_error(status);
}

void init_routing(nb::callable make, const Input* x, const Input* expert_idx, const Input* scale,
                  const Input* offset, int64_t active_num, int64_t expert_capacity, int64_t expert_num,
                  int64_t drop_pad_mode, int64_t expert_tokens_num_type, bool expert_tokens_num_flag,
                  int64_t quant_mode, std::vector<int64_t> active_expert_range, int64_t row_idx_type,
                  std::string mx_scale, int threads, const std::optional<std::string>& isa) {
  MoeInitRoutingArgs args;
  args.x = view_of(x);
  args.expert_idx = view_of(expert_idx);
  args.scale = view_of(scale);
  args.offset = view_of(offset);
  args.active_num = active_num;
  args.expert_capacity = expert_capacity;
  args.expert_num = expert_num;
  args.drop_pad_mode = drop_pad_mode;
  args.expert_tokens_num_type = expert_tokens_num_type;
  args.expert_tokens_num_flag = expert_tokens_num_flag;
  args.quant_mode = quant_mode;
  args.active_expert_range = std::move(active_expert_range);
  args.row_idx_type = row_idx_type;
  args.mx_scale = std::move(mx_scale);
  const RoutingOptions options = options_of(threads, isa);
  MoeInitRoutingOutputs outputs = value_or_raise(moe_init_routing_v3_outputs(args));
  Made made(std::move(make));
  made.fill("expanded_x", outputs.expanded_x);
  made.fill("expanded_row_idx", outputs.expanded_row_idx);
  made.fill("expert_tokens_count_or_cumsum", outputs.expert_tokens_count_or_cumsum);
  made.fill("expanded_scale", outputs.expanded_scale);
  run(&moe_init_routing_v3, args, outputs, options);
}

void token_permute(nb::callable make, const Input* tokens, const Input* indices,
                   std::optional<int64_t> num_out_tokens, bool padded_mode, int64_t quant_mode,
                   std::string mx_scale, int threads, const std::optional<std::string>& isa) {
  MoeTokenPermuteArgs args;
  args.tokens = view_of(tokens);
  args.indices = view_of(indices);
  args.num_out_tokens = num_out_tokens;
  args.padded_mode = padded_mode;
  args.quant_mode = quant_mode;
  args.mx_scale = std::move(mx_scale);
  const RoutingOptions options = options_of(threads, isa);
  MoeTokenPermuteOutputs outputs = value_or_raise(moe_token_permute_outputs(args));
  Made made(std::move(make));
  made.fill("permuted_tokens", outputs.permuted_tokens);
  made.fill("sorted_indices", outputs.sorted_indices);
  made.fill("expanded_scale", outputs.expanded_scale);
  run(&moe_token_permute, args, outputs, options);
}

void token_permute_grad(nb::callable make, const Input* grad_permuted_tokens, const Input* sorted_indices,
                        int64_t num_topk, bool padded_mode, int threads,
                        const std::optional<std::string>& isa) {
  MoeTokenPermuteGradArgs args;
  args.grad_permuted_tokens = view_of(grad_permuted_tokens);
  args.sorted_indices = view_of(sorted_indices);
  args.num_topk = num_topk;
  args.padded_mode = padded_mode;
  const RoutingOptions options = options_of(threads, isa);
  MoeTokenPermuteGradOutputs outputs = value_or_raise(moe_token_permute_grad_outputs(args));
  Made made(std::move(make));
  made.fill("grad_tokens", outputs.grad_tokens);
  run(&moe_token_permute_grad, args, outputs, options);
}

void token_unpermute(nb::callable make, const Input* permuted_tokens, const Input* sorted_indices,
                     const Input* probs, bool padded_mode, int threads,
                     const std::optional<std::string>& isa) {
  MoeTokenUnpermuteArgs args;
  args.permuted_tokens = view_of(permuted_tokens);
  args.sorted_indices = view_of(sorted_indices);
  args.probs = view_of(probs);
  args.padded_mode = padded_mode;
  const RoutingOptions options = options_of(threads, isa);
  MoeTokenUnpermuteOutputs outputs = value_or_raise(moe_token_unpermute_outputs(args));
  Made made(std::move(make));
  made.fill("out", outputs.out);
  run(&moe_token_unpermute, args, outputs, options);
}

void token_unpermute_grad(nb::callable make, const Input* permuted_tokens,
                          const Input* grad_unpermuted_tokens, const Input* sorted_indices,
                          const Input* probs, bool padded_mode, int threads,
                          const std::optional<std::string>& isa) {
  MoeTokenUnpermuteGradArgs args;
  args.permuted_tokens = view_of(permuted_tokens);
  args.grad_unpermuted_tokens = view_of(grad_unpermuted_tokens);
  args.sorted_indices = view_of(sorted_indices);
  args.probs = view_of(probs);
  args.padded_mode = padded_mode;
  const RoutingOptions options = options_of(threads, isa);
  MoeTokenUnpermuteGradOutputs outputs = value_or_raise(moe_token_unpermute_grad_outputs(args));
  Made made(std::move(make));
  made.fill("permuted_grad", outputs.permuted_grad);
  made.fill("probs_grad", outputs.probs_grad);
  run(&moe_token_unpermute_grad, args, outputs, options);
}

void gating_top_k(nb::callable make, const Input* logits, const Input* bias, int64_t k, std::string scoring,
                  int64_t n_group, int64_t topk_group, bool renormalize, double routed_scaling_factor,
                  int threads, const std::optional<std::string>& isa) {
  MoeGatingTopKArgs args;
  args.logits = view_of(logits);
  args.bias = view_of(bias);
  args.k = k;
  args.scoring = std::move(scoring);
  args.n_group = n_group;
  args.topk_group = topk_group;
  args.renormalize = renormalize;
  args.routed_scaling_factor = routed_scaling_factor;
  const RoutingOptions options = options_of(threads, isa);
  MoeGatingTopKOutputs outputs = value_or_raise(moe_gating_top_k_outputs(args));
  Made made(std::move(make));
  made.fill("weights", outputs.weights);
  made.fill("ids", outputs.ids);
  run(&moe_gating_top_k, args, outputs, options);
}

}  // namespace

void bind_routing(nb::module_& module) {
  module.def("moe_init_routing_v3", &init_routing, "make"_a, "x"_a, "expert_idx"_a, "scale"_a.none(),
             "offset"_a.none(), "active_num"_a, "expert_capacity"_a, "expert_num"_a, "drop_pad_mode"_a,
             "expert_tokens_num_type"_a, "expert_tokens_num_flag"_a, "quant_mode"_a, "active_expert_range"_a,
             "row_idx_type"_a, "mx_scale"_a, "threads"_a, "isa"_a.none());
  module.def("moe_token_permute", &token_permute, "make"_a, "tokens"_a, "indices"_a,
             "num_out_tokens"_a.none(), "padded_mode"_a, "quant_mode"_a, "mx_scale"_a, "threads"_a,
             "isa"_a.none());
  module.def("moe_token_permute_grad", &token_permute_grad, "make"_a, "grad_permuted_tokens"_a,
             "sorted_indices"_a, "num_topk"_a, "padded_mode"_a, "threads"_a, "isa"_a.none());
  module.def("moe_token_unpermute", &token_unpermute, "make"_a, "permuted_tokens"_a, "sorted_indices"_a,
             "probs"_a.none(), "padded_mode"_a, "threads"_a, "isa"_a.none());
  module.def("moe_token_unpermute_grad", &token_unpermute_grad, "make"_a, "permuted_tokens"_a,
             "grad_unpermuted_tokens"_a, "sorted_indices"_a, "probs"_a.none(), "padded_mode"_a, "threads"_a,
             "isa"_a.none());
  module.def("moe_gating_top_k", &gating_top_k, "make"_a, "logits"_a, "bias"_a.none(), "k"_a, "scoring"_a,
             "n_group"_a, "topk_group"_a, "renormalize"_a, "routed_scaling_factor"_a, "threads"_a,
             "isa"_a.none());
}

}  // namespace megamoe::python
