// The stages of a call in the order data passes through them: where each lies in Stages, and its number
// format.
#include "cli/stage_table.h"

namespace megamoe::cli {
namespace {

TensorView flat(const std::vector<float>& values) {
  return {values.data(), DType::kFloat32, {static_cast<int64_t>(values.size())}};
}
TensorView flat(const std::vector<int64_t>& values) {
  return {values.data(), DType::kInt64, {static_cast<int64_t>(values.size())}};
}

template <auto kMember>
TensorView routed(const Stages& stages) {
  return flat(stages.*kMember);
}
template <auto kMember>
TensorView shared(const Stages& stages) {
  return flat(stages.shared.*kMember);
}

DType scale_type(const moe::Codec& codec) {
  return codec.encodes() ? quant::rule_info(*codec.rule).scales : DType::kFloat32;
}

constexpr auto kIndex = [](const moe::Scenario&) { return DType::kInt64; };
constexpr auto kTokenCodes = [](const moe::Scenario& s) { return s.token_codec->codes(); };
constexpr auto kTokenScales = [](const moe::Scenario& s) { return scale_type(*s.token_codec); };
// Linear1 is rounded to the type that its activation is rounded to.
constexpr auto kInner = [](const moe::Scenario& s) { return s.activated(); };
constexpr auto kInnerCodes = [](const moe::Scenario& s) { return s.requantise_codec->codes(); };
constexpr auto kInnerScales = [](const moe::Scenario& s) { return scale_type(*s.requantise_codec); };
constexpr auto kRows = [](const moe::Scenario&) { return DType::kBFloat16; };

constexpr StageInfo kStages[] = {
    {"row order", true, false, routed<&StageRows::home>, kIndex},
    {"token codes", true, false, routed<&StageRows::token_codes>, kTokenCodes},
    {"token scales", true, false, routed<&StageRows::token_scales>, kTokenScales},
    {"Linear1", false, false, routed<&StageRows::linear1>, kInner},
    {"activation", false, false, routed<&StageRows::activated>, kInner},
    {"requantised codes", false, false, routed<&StageRows::requantised>, kInnerCodes},
    {"requantise scales", false, false, routed<&StageRows::requantised_scales>, kInnerScales},
    {"Linear2", false, false, routed<&StageRows::linear2>, kRows},
    {"returned rows", false, false, routed<&Stages::returned>, kRows},
    {"shared row order", true, true, shared<&StageRows::home>, kIndex},
    {"shared token codes", true, true, shared<&StageRows::token_codes>, kTokenCodes},
    {"shared token scales", true, true, shared<&StageRows::token_scales>, kTokenScales},
    {"shared Linear1", false, true, shared<&StageRows::linear1>, kInner},
    {"shared activation", false, true, shared<&StageRows::activated>, kInner},
    {"shared requantised codes", false, true, shared<&StageRows::requantised>, kInnerCodes},
    {"shared requantise scales", false, true, shared<&StageRows::requantised_scales>, kInnerScales},
    {"shared Linear2", false, true, shared<&StageRows::linear2>, kRows},
};

}  // namespace

std::span<const StageInfo> stage_table() {
  return kStages;
}

int64_t stage_rows(const StageInfo& stage, const Stages& stages) {
  return static_cast<int64_t>((stage.shared ? stages.shared.home : stages.home).size()) / 3;
}

}  // namespace megamoe::cli
