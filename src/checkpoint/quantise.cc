// Weights of a bfloat16 checkpoint -> int8 with one scale per output channel.
#include "checkpoint/quantise.h"

#include <cmath>
#include <string>

#include "format/bf16.h"

namespace megamoe::checkpoint {
namespace {

constexpr float kLargestCode = 127.0f;

/// The codes of one channel of `k` elements that lie `step` apart; returns its scale.
float quantise_channel(const uint16_t* source, int64_t k, int64_t step, int8_t* codes) {
  float largest = 0.0f;
  for (int64_t i = 0; i < k; ++i) {
    const float magnitude = std::fabs(format::bf16_to_float(source[i * step]));
    if (magnitude > largest) largest = magnitude;  // fmax would let a signalling NaN through
  }
  const float scale = largest / kLargestCode;
  for (int64_t i = 0; i < k; ++i) {
    const float code = std::nearbyint(format::bf16_to_float(source[i * step]) / scale);
    // NaN comes from a NaN element or a scale of 0; a subnormal scale is coarse enough to give codes past the
    // last one.
    codes[i] = std::isnan(code)
                   ? int8_t{0}
                   : static_cast<int8_t>(std::fmin(std::fmax(code, -kLargestCode), kLargestCode));
  }
  return scale;
}

}  // namespace

Result<std::unique_ptr<QuantisedLinear>> quantise_int8(const LinearWeights& weights) {
  auto invalid = [](const std::string& what) { return Status(Code::kInvalidArgument, "quantise: " + what); };
  struct Part {
    const std::vector<TensorView>* list;
    int64_t first_channel;
  };
  std::vector<Part> parts;
  int64_t experts = 0, k = 0, channels = 0;
  for (const auto* list : {&weights.weight, &weights.up}) {
    if (list->empty()) continue;
    const TensorView& first = (*list)[0];
    const bool stacked = list->size() == 1 && first.dims == 3;
    for (const TensorView& t : *list) {
      if (t.dtype != DType::kBFloat16 || t.layout != Layout::kNd) {
        return Status(Code::kInvalidType, std::string("quantise: weights are ") + dtype_name(t.dtype) + " " +
                                              layout_name(t.layout) + ": expected bfloat16 ND");
      }
      if (t.dims != (stacked ? 3 : 2))
        return invalid("weights have shape " + t.shape_text() + ": expected a matrix");
      if (t.shape[t.dims - 1] != first.shape[t.dims - 1] || t.shape[t.dims - 2] != first.shape[t.dims - 2]) {
        return invalid("weights have shape " + t.shape_text() + ": expected " + first.shape_text());
      }
    }
    const int64_t list_experts = stacked ? first.shape[0] : static_cast<int64_t>(list->size());
    const int64_t list_k = first.shape[first.dims - (weights.k_last ? 1 : 2)];
    if (!parts.empty() && (list_experts != experts || list_k != k)) {
      return invalid("up tensors have shape " + first.shape_text() + ": expected that of the gate tensors");
    }
    experts = list_experts;
    k = list_k;
    parts.push_back({list, channels});
    channels += first.shape[first.dims - (weights.k_last ? 2 : 1)];
  }
  if (parts.empty()) return invalid("no weights: expected at least one tensor");

  auto result = std::make_unique<QuantisedLinear>();
  auto codes = base::Pages::allocate(static_cast<size_t>(experts * channels * k), /*huge=*/true);
  if (!codes) return codes.status();
  auto scales =
      base::Pages::allocate(static_cast<size_t>(experts * channels) * sizeof(float), /*huge=*/false);
  if (!scales) return scales.status();
  result->codes_ = std::move(*codes);
  result->scales_ = std::move(*scales);
  auto* const code_data = reinterpret_cast<int8_t*>(result->codes_.data());
  auto* const scale_data = reinterpret_cast<float*>(result->scales_.data());
  for (const Part& part : parts) {
    for (int64_t e = 0; e < experts; ++e) {
      const bool stacked = (*part.list)[0].dims == 3;
      const TensorView& t = (*part.list)[stacked ? 0 : static_cast<size_t>(e)];
      const int64_t n = t.shape[t.dims - (weights.k_last ? 2 : 1)];
      const int64_t n_step = t.strides[t.dims - (weights.k_last ? 2 : 1)];
      const int64_t k_step = t.strides[t.dims - (weights.k_last ? 1 : 2)];
      const uint16_t* const matrix = static_cast<const uint16_t*>(t.data) + (stacked ? e * t.strides[0] : 0);
      for (int64_t c = 0; c < n; ++c) {
        const int64_t channel = e * channels + part.first_channel + c;
        scale_data[channel] = quantise_channel(matrix + c * n_step, k, k_step, code_data + channel * k);
      }
    }
  }
  result->weights_.k_last = true;
  result->weights_.weight = {TensorView(code_data, DType::kInt8, {experts, channels, k})};
  result->weights_.scale = {TensorView(scale_data, DType::kFloat32, {experts, channels})};
  return result;
}

}  // namespace megamoe::checkpoint
