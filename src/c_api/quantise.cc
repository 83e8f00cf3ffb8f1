// Quantisation rules, casts and layouts of the C interface.
#include "megamoe/quantise.h"

#include "c_api/convert.h"
#include "c_api/guard.h"
#include "megamoe/c_routing.h"

namespace megamoe::c_api {
namespace {

Status to_quant_arguments(const megamoe_quant_args* given, QuantArguments& arguments) {
  if (given == nullptr) return Status::ok();
  megamoe_quant_args known;
  megamoe_init_quant_args(&known, sizeof known);
  MEGAMOE_RETURN_IF_ERROR(read_struct(given, "args", known));
  if (known.smooth != nullptr) {
    auto smooth = to_view(known.smooth, "smooth");
    if (!smooth) return smooth.status();
    arguments.smooth = *smooth;
  }
  if ((known.has & MEGAMOE_HAS_SCALE) != 0) arguments.scale = known.scale;
  if ((known.has & MEGAMOE_HAS_OFFSET) != 0) arguments.offset = known.offset;
  return to_isa(known.isa, arguments.isa);
}

/// Input and output of a function on two tensors.
template <class Function>
int32_t on_tensors(const megamoe_tensor* x, const megamoe_tensor* y, Function&& function) {
  return guarded([&] {
    auto input = to_view(x, "x");
    if (!input) return input.status();
    auto output = to_ref(y, "y");
    if (!output) return output.status();
    return function(*input, *output);
  });
}

int32_t see_as(Result<TensorView> (*view_of)(const TensorView&), const megamoe_tensor* given,
               const char* name, megamoe_tensor* out, const char* out_name) {
  return guarded([&] {
    if (out == nullptr) return null_argument(out_name);
    auto tensor = to_ref(given, name);
    if (!tensor) return tensor.status();
    auto seen = view_of(view(*tensor));
    if (!seen) return seen.status();
    TensorRef result = *tensor;
    result.dtype = seen->dtype;
    std::copy(std::begin(seen->shape), std::end(seen->shape), result.shape);
    std::copy(std::begin(seen->strides), std::end(seen->strides), result.strides);
    *out = from_ref(result);
    return Status::ok();
  });
}

}  // namespace
}  // namespace megamoe::c_api

namespace api = megamoe::c_api;
using megamoe::Code;
using megamoe::Status;

extern "C" {

int32_t megamoe_quant_rule_count(void) {
  int32_t count = 0;
  const int32_t code = api::guarded([&] {
    count = static_cast<int32_t>(megamoe::quant_rules().size());
    return Status::ok();
  });
  return code == 0 ? count : 0;
}

int32_t megamoe_quant_rule_info(int32_t index, megamoe_quant_rule* rule) {
  return api::guarded([&] {
    if (rule == nullptr) return api::null_argument("rule");
    const auto rules = megamoe::quant_rules();
    if (index < 0 || index >= static_cast<int32_t>(rules.size())) {
      return Status(Code::kInvalidArgument, "index = " + std::to_string(index) + ": expected 0 to " +
                                                std::to_string(rules.size() - 1));
    }
    const auto& info = rules[static_cast<size_t>(index)];
    megamoe_quant_rule known = {};
    known.name = info.name;
    known.codes = static_cast<int32_t>(info.codes);
    known.scales = static_cast<int32_t>(info.scales);
    known.group = info.group;
    known.takes_smooth = info.takes_smooth;
    known.takes_scale = info.takes_scale;
    known.takes_offset = info.takes_offset;
    const size_t size = rule->struct_size;
    if (size < sizeof(size_t)) {
      return Status(Code::kInvalidArgument, "rule.struct_size = " + std::to_string(size) + ": expected " +
                                                std::to_string(sizeof known));
    }
    api::init_struct(rule, size, known);
    return Status::ok();
  });
}

void megamoe_init_quant_args(megamoe_quant_args* args, size_t struct_size) {
  api::init_struct(args, struct_size, megamoe_quant_args{});
}

int32_t megamoe_quantise(const char* rule, const megamoe_tensor* x, const megamoe_tensor* codes,
                         const megamoe_tensor* scales, const megamoe_quant_args* args) {
  return api::guarded([&] {
    if (rule == nullptr) return api::null_argument("rule");
    megamoe::QuantArguments arguments;
    MEGAMOE_RETURN_IF_ERROR(api::to_quant_arguments(args, arguments));
    auto input = api::to_view(x, "x");
    if (!input) return input.status();
    auto output = api::to_ref(codes, "codes");
    if (!output) return output.status();
    megamoe::TensorRef scales_ref;
    if (scales != nullptr) {
      auto given = api::to_ref(scales, "scales");
      if (!given) return given.status();
      scales_ref = *given;
    }
    return megamoe::quantise(rule, *input, *output, scales_ref, arguments);
  });
}

int32_t megamoe_dequantise(const char* rule, const megamoe_tensor* codes, const megamoe_tensor* scales,
                           const megamoe_tensor* y, const megamoe_quant_args* args) {
  return api::guarded([&] {
    if (rule == nullptr) return api::null_argument("rule");
    megamoe::QuantArguments arguments;
    MEGAMOE_RETURN_IF_ERROR(api::to_quant_arguments(args, arguments));
    auto input = api::to_view(codes, "codes");
    if (!input) return input.status();
    megamoe::TensorView scales_view;
    if (scales != nullptr) {
      auto given = api::to_view(scales, "scales");
      if (!given) return given.status();
      scales_view = *given;
    }
    auto output = api::to_ref(y, "y");
    if (!output) return output.status();
    return megamoe::dequantise(rule, *input, scales_view, *output, arguments);
  });
}

int32_t megamoe_cast(const megamoe_tensor* x, const megamoe_tensor* y, int32_t saturate) {
  return api::on_tensors(
      x, y, [&](const auto& input, const auto& output) { return cast(input, output, saturate != 0); });
}

int32_t megamoe_convert_layout(const megamoe_tensor* x, const megamoe_tensor* y) {
  return api::on_tensors(x, y, megamoe::convert_layout);
}

int32_t megamoe_fractal_storage_shape(int32_t dtype, int32_t layout, int64_t rows, int64_t columns,
                                      int64_t shape[4]) {
  return api::guarded([&] {
    if (shape == nullptr) return api::null_argument("shape");
    auto storage = megamoe::fractal_storage_shape(static_cast<megamoe::DType>(dtype),
                                                  static_cast<megamoe::Layout>(layout), rows, columns);
    if (!storage) return storage.status();
    std::copy(storage->begin(), storage->end(), shape);
    return Status::ok();
  });
}

int32_t megamoe_int4_view(const megamoe_tensor* words, megamoe_tensor* nibbles) {
  return api::see_as(megamoe::int4_view, words, "words", nibbles, "nibbles");
}

int32_t megamoe_int32_view(const megamoe_tensor* nibbles, megamoe_tensor* words) {
  return api::see_as(megamoe::int32_view, nibbles, "nibbles", words, "words");
}

}  // extern "C"
