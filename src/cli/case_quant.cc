// Test cases of the formats: casts, quantisers, their inverses and layouts.
#include "cli/case_quant.h"

#include <algorithm>

#include "megamoe/quantise.h"

namespace megamoe::cli {
namespace {

constexpr std::byte kUntouched{0x5a};

TensorView input_view(const Case& test, const char* arg) {
  const CaseTensor* tensor = test.input(arg);
  return tensor == nullptr ? TensorView{} : tensor->view();
}

/// Outputs of a case with memory that shows what was not written.
class Outputs {
 public:
  explicit Outputs(const Case& test) : test_(test) {
    for (const CaseTensor& tensor : test.expected) bytes_.emplace_back(tensor.bytes.size(), kUntouched);
  }
  /// The output of an argument; absent where the case expects none.
  TensorRef ref(const char* arg) {
    TensorRef ref;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (test_.expected[i].arg != arg) continue;
      const TensorView like = test_.expected[i].view();
      ref.data = bytes_[i].data();
      ref.dtype = like.dtype;
      ref.layout = like.layout;
      ref.dims = like.dims;
      std::copy(std::begin(like.shape), std::end(like.shape), ref.shape);
      ref.set_contiguous();
    }
    return ref;
  }
  CaseOutputs take() { return std::move(bytes_); }

 private:
  const Case& test_;
  CaseOutputs bytes_;
};

/// Rules of the cases by their name there and the end of the format's name.
Result<std::string> mx_rule(const std::string& name, DType codes) {
  const std::string suffix = codes == DType::kFloat8E5M2   ? "_e5m2"
                             : codes == DType::kFloat8E4M3 ? "_e4m3"
                             : codes == DType::kFloat4E2M1 ? "_e2m1"
                                                           : "";
  if (suffix.empty()) {
    return Status(Code::kInvalidType, std::string("y has type ") + dtype_name(codes) +
                                          ": expected float8_e5m2, float8_e4m3fn or float4_e2m1");
  }
  constexpr const char* kNames[][2] = {
      {"mx_floor", "mx_floor"}, {"mx_roundscale", "mx_round_up"}, {"mx_roundscale_amax", "mx_round_up_amax"}};
  for (const auto& [theirs, ours] : kNames) {
    if (name == theirs) return ours + suffix;
  }
  return Status(Code::kInvalidArgument,
                "rule = " + name + ": expected mx_floor, mx_roundscale or mx_roundscale_amax");
}

Result<CaseOutputs> run_rule(const Case& test, const CommonOptions& common, const std::string& rule) {
  Outputs outputs(test);
  QuantArguments arguments;
  arguments.isa = common.isa;
  MEGAMOE_RETURN_IF_ERROR(
      quantise(rule, input_view(test, "x"), outputs.ref("y"), outputs.ref("scale"), arguments));
  return outputs.take();
}

}  // namespace

Result<CaseOutputs> run_cast(const Case& test, const CommonOptions&) {
  Result<bool> saturate = test.flag("sat", true);
  if (!saturate) return saturate.status();
  Outputs outputs(test);
  MEGAMOE_RETURN_IF_ERROR(cast(input_view(test, "x"), outputs.ref("y"), *saturate));
  return outputs.take();
}

Result<CaseOutputs> run_decode(const Case& test, const CommonOptions&) {
  Result<std::string> seen_as = test.text("view", "");
  if (!seen_as) return seen_as.status();
  TensorView x = input_view(test, "x");
  if (*seen_as == dtype_name(DType::kInt4)) {
    Result<TensorView> nibbles = int4_view(x);
    if (!nibbles) return nibbles.status();
    x = *nibbles;
  }
  Outputs outputs(test);
  MEGAMOE_RETURN_IF_ERROR(cast(x, outputs.ref("y"), /*saturate=*/false));
  return outputs.take();
}

Result<CaseOutputs> run_mx_quant(const Case& test, const CommonOptions& common) {
  Result<std::string> name = test.text("rule", "mx_floor");
  if (!name) return name.status();
  Result<std::string> rule = mx_rule(*name, Outputs(test).ref("y").dtype);
  if (!rule) return rule.status();
  return run_rule(test, common, *rule);
}

Result<CaseOutputs> run_mx_dequant(const Case& test, const CommonOptions& common) {
  const TensorView codes = input_view(test, "x");
  Result<std::string> rule = mx_rule("mx_floor", codes.dtype);  // the inverse is the same for all of them
  if (!rule) return rule.status();
  Outputs outputs(test);
  QuantArguments arguments;
  arguments.isa = common.isa;
  MEGAMOE_RETURN_IF_ERROR(dequantise(*rule, codes, input_view(test, "scale"), outputs.ref("y"), arguments));
  return outputs.take();
}

Result<CaseOutputs> run_int8_per_token(const Case& test, const CommonOptions& common) {
  return run_rule(test, common, "int8_per_token");
}

Result<CaseOutputs> run_layout(const Case& test, const CommonOptions&) {
  Outputs outputs(test);
  MEGAMOE_RETURN_IF_ERROR(convert_layout(input_view(test, "x"), outputs.ref("y")));
  return outputs.take();
}

}  // namespace megamoe::cli
