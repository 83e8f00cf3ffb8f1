// The routing operators of the C interface.
#include <array>

#include "c_api/convert.h"
#include "c_api/guard.h"
#include "megamoe/c_routing.h"
#include "route/fields.h"

namespace megamoe::c_api {
namespace {

/// Reads fields of a caller's struct until the first that is wrong.
class Reader {
 public:
  void operator()(const char* name, const megamoe_tensor* given, TensorView& out) {
    if (!status_ || given == nullptr) return;
    Result<TensorView> view = to_view(given, name);
    if (view) {
      out = *view;
    } else {
      status_ = view.status();
    }
  }
  void operator()(const char*, const char* given, std::string& out) const {
    if (given != nullptr) out = given;
  }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

void read(const megamoe_init_routing_args& given, MoeInitRoutingArgs& args, Reader& reader) {
  reader("x", given.x, args.x);
  reader("expert_idx", given.expert_idx, args.expert_idx);
  reader("scale", given.scale, args.scale);
  reader("offset", given.offset, args.offset);
  args.active_num = given.active_num;
  args.expert_capacity = given.expert_capacity;
  args.expert_num = given.expert_num;
  args.drop_pad_mode = given.drop_pad_mode;
  args.expert_tokens_num_type = given.expert_tokens_num_type;
  args.expert_tokens_num_flag = given.expert_tokens_num_flag != 0;
  args.quant_mode = given.quant_mode;
  if (const int64_t* range = given.active_expert_range) args.active_expert_range = {range[0], range[1]};
  args.row_idx_type = given.row_idx_type;
  reader("mx_scale", given.mx_scale, args.mx_scale);
}

void read(const megamoe_token_permute_args& given, MoeTokenPermuteArgs& args, Reader& reader) {
  reader("tokens", given.tokens, args.tokens);
  reader("indices", given.indices, args.indices);
  args.num_out_tokens = given.num_out_tokens;
  args.padded_mode = given.padded_mode != 0;
  args.quant_mode = given.quant_mode;
  reader("mx_scale", given.mx_scale, args.mx_scale);
}

void read(const megamoe_token_permute_grad_args& given, MoeTokenPermuteGradArgs& args, Reader& reader) {
  reader("grad_permuted_tokens", given.grad_permuted_tokens, args.grad_permuted_tokens);
  reader("sorted_indices", given.sorted_indices, args.sorted_indices);
  args.num_topk = given.num_topk;
  args.padded_mode = given.padded_mode != 0;
}

void read(const megamoe_token_unpermute_args& given, MoeTokenUnpermuteArgs& args, Reader& reader) {
  reader("permuted_tokens", given.permuted_tokens, args.permuted_tokens);
  reader("sorted_indices", given.sorted_indices, args.sorted_indices);
  reader("probs", given.probs, args.probs);
  args.padded_mode = given.padded_mode != 0;
}

void read(const megamoe_token_unpermute_grad_args& given, MoeTokenUnpermuteGradArgs& args, Reader& reader) {
  reader("permuted_tokens", given.permuted_tokens, args.permuted_tokens);
  reader("grad_unpermuted_tokens", given.grad_unpermuted_tokens, args.grad_unpermuted_tokens);
  reader("sorted_indices", given.sorted_indices, args.sorted_indices);
  reader("probs", given.probs, args.probs);
  args.padded_mode = given.padded_mode != 0;
}

void read(const megamoe_gating_top_k_args& given, MoeGatingTopKArgs& args, Reader& reader) {
  reader("logits", given.logits, args.logits);
  reader("bias", given.bias, args.bias);
  args.k = given.k;
  reader("scoring", given.scoring, args.scoring);
  args.n_group = given.n_group;
  args.topk_group = given.topk_group;
  args.renormalize = given.renormalize != 0;
  args.routed_scaling_factor = given.routed_scaling_factor;
  reader("group_score", given.group_score, args.group_score);
}

void set_defaults(megamoe_init_routing_args& args) {
  const MoeInitRoutingArgs defaults;
  args.active_num = defaults.active_num;
  args.expert_capacity = defaults.expert_capacity;
  args.expert_num = defaults.expert_num;
  args.quant_mode = defaults.quant_mode;
}
void set_defaults(megamoe_token_permute_args& args) {
  args.quant_mode = MoeTokenPermuteArgs().quant_mode;
}
void set_defaults(megamoe_token_permute_grad_args& args) {
  args.num_topk = MoeTokenPermuteGradArgs().num_topk;
}
void set_defaults(megamoe_token_unpermute_args&) {}
void set_defaults(megamoe_token_unpermute_grad_args&) {}
void set_defaults(megamoe_gating_top_k_args& args) {
  const MoeGatingTopKArgs defaults;
  args.n_group = defaults.n_group;
  args.topk_group = defaults.topk_group;
  args.routed_scaling_factor = defaults.routed_scaling_factor;
}

template <class Given>
void init(Given* args, size_t struct_size) {
  Given defaults = {};
  set_defaults(defaults);
  init_struct(args, struct_size, defaults);
}

template <class Args, class Given>
Result<Args> to_args(const Given* given) {
  Given known;
  init(&known, sizeof known);
  MEGAMOE_RETURN_IF_ERROR(read_struct(given, "args", known));
  Args args;
  Reader reader;
  read(known, args, reader);
  MEGAMOE_RETURN_IF_ERROR(reader.status());
  return args;
}

Status check_count(const void* outputs, int32_t count, int32_t expected) {
  if (outputs == nullptr) return null_argument("outputs");
  if (count == expected) return Status::ok();
  return Status(Code::kInvalidArgument,
                "count = " + std::to_string(count) + ": expected " + std::to_string(expected) + " outputs");
}

template <class Outputs>
int32_t count_of(Outputs& outputs) {
  int32_t count = 0;
  route::visit_outputs(outputs, [&](const char*, TensorRef&) { ++count; });
  return count;
}

template <class Args, class Outputs, class Given>
int32_t describe(Result<Outputs> (*outputs_of)(const Args&), const Given* given, megamoe_tensor* outputs,
                 int32_t count) {
  return guarded([&] {
    Outputs described;
    MEGAMOE_RETURN_IF_ERROR(check_count(outputs, count, count_of(described)));
    auto args = to_args<Args>(given);
    if (!args) return args.status();
    auto result = outputs_of(*args);
    if (!result) return result.status();
    megamoe_tensor* next = outputs;
    route::visit_outputs(*result, [&](const char*, TensorRef& output) { *next++ = from_ref(output); });
    return Status::ok();
  });
}

template <class Args, class Outputs, class Given>
int32_t run(Status (*op)(const Args&, const Outputs&, const RoutingOptions&), const Given* given,
            const megamoe_tensor* outputs, int32_t count, const megamoe_routing_options* options) {
  return guarded([&] {
    Outputs converted;
    MEGAMOE_RETURN_IF_ERROR(check_count(outputs, count, count_of(converted)));
    auto args = to_args<Args>(given);
    if (!args) return args.status();
    RoutingOptions chosen;
    if (options != nullptr) {
      megamoe_routing_options known;
      megamoe_init_routing_options(&known, sizeof known);
      MEGAMOE_RETURN_IF_ERROR(read_struct(options, "options", known));
      chosen.threads = known.threads;
      MEGAMOE_RETURN_IF_ERROR(to_isa(known.isa, chosen.isa));
    }
    Status status;
    const megamoe_tensor* next = outputs;
    route::visit_outputs(converted, [&](const char* name, TensorRef& output) {
      const megamoe_tensor* tensor = next++;
      if (!status || tensor->dtype == static_cast<int32_t>(DType::kUndefined)) return;
      Result<TensorRef> ref = to_ref(tensor, name);
      if (ref) {
        output = *ref;
      } else {
        status = ref.status();
      }
    });
    return status ? op(*args, converted, chosen) : status;
  });
}

}  // namespace
}  // namespace megamoe::c_api

namespace api = megamoe::c_api;

extern "C" {

void megamoe_init_routing_options(megamoe_routing_options* options, size_t struct_size) {
  api::init_struct(options, struct_size, megamoe_routing_options{});
}

// Three functions per operator: defaults of its arguments, description of its outputs, the operator.
#define MEGAMOE_C_OPERATOR(args_name, op_name)                                                             \
  void megamoe_init_##args_name(megamoe_##args_name* args, size_t struct_size) {                           \
    api::init(args, struct_size);                                                                          \
  }                                                                                                        \
  int32_t megamoe_##op_name##_outputs(const megamoe_##args_name* args, megamoe_tensor* outputs,            \
                                      int32_t count) {                                                     \
    return api::describe(megamoe::op_name##_outputs, args, outputs, count);                                \
  }                                                                                                        \
  int32_t megamoe_##op_name(const megamoe_##args_name* args, const megamoe_tensor* outputs, int32_t count, \
                            const megamoe_routing_options* options) {                                      \
    return api::run(megamoe::op_name, args, outputs, count, options);                                      \
  }
MEGAMOE_C_OPERATOR(init_routing_args, moe_init_routing_v3)
MEGAMOE_C_OPERATOR(token_permute_args, moe_token_permute)
MEGAMOE_C_OPERATOR(token_permute_grad_args, moe_token_permute_grad)
MEGAMOE_C_OPERATOR(token_unpermute_args, moe_token_unpermute)
MEGAMOE_C_OPERATOR(token_unpermute_grad_args, moe_token_unpermute_grad)
MEGAMOE_C_OPERATOR(gating_top_k_args, moe_gating_top_k)
#undef MEGAMOE_C_OPERATOR

}  // extern "C"
