// Weights of a bfloat16 checkpoint -> codes and scales of a quantisation rule.
#include "checkpoint/quantise.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "format/bf16.h"
#include "format/float8_e4m3.h"
#include "format/int4.h"
#include "megamoe/quantise.h"

namespace megamoe::checkpoint {
namespace {

Status invalid(const std::string& what) {
  return Status(Code::kInvalidArgument, "quantise: " + what);
}

/// The checked sizes of a layer. Gate and up tensors are parts of one matrix.
struct Source {
  struct Part {
    const std::vector<TensorView>* list;
    int64_t first_channel;
  };
  std::vector<Part> parts;
  int64_t experts = 0, k = 0, channels = 0;
  bool k_last = false;

  /// Expert e of a part as (channels, K), whatever its order in memory.
  TensorView matrix(const Part& part, int64_t e) const {
    const bool stacked = (*part.list)[0].dims == 3;
    const TensorView& t = (*part.list)[stacked ? 0 : static_cast<size_t>(e)];
    const int n = t.dims - (k_last ? 2 : 1), inner = t.dims - (k_last ? 1 : 2);
    TensorView rows(static_cast<const uint16_t*>(t.data) + (stacked ? e * t.strides[0] : 0), t.dtype,
                    {t.shape[n], k});
    rows.strides[0] = t.strides[n];
    rows.strides[1] = t.strides[inner];
    return rows;
  }
};

Result<Source> check(const LinearWeights& weights) {
  Source source;
  source.k_last = weights.k_last;
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
    const int64_t experts = stacked ? first.shape[0] : static_cast<int64_t>(list->size());
    const int64_t k = first.shape[first.dims - (weights.k_last ? 1 : 2)];
    if (!source.parts.empty() && (experts != source.experts || k != source.k)) {
      return invalid("up tensors have shape " + first.shape_text() + ": expected that of the gate tensors");
    }
    source.experts = experts;
    source.k = k;
    source.parts.push_back({list, source.channels});
    source.channels += first.shape[first.dims - (weights.k_last ? 2 : 1)];
  }
  if (source.parts.empty()) return invalid("no weights: expected at least one tensor");
  return source;
}

/// A rule whose codes and scales are those of weights.
Result<QuantRuleInfo> weight_rule(std::string_view name) {
  const std::vector<QuantRuleInfo> rules = quant_rules();
  const auto found =
      std::find_if(rules.begin(), rules.end(), [&](const QuantRuleInfo& rule) { return name == rule.name; });
  const bool per_channel = found != rules.end() && found->group == 0 && found->scales == DType::kFloat32;
  if (per_channel || (found != rules.end() && found->scales == DType::kFloat8E8M0)) return *found;
  return invalid("rule = " + std::string(name) +
                 ": expected one with float32 scales of whole rows or with E8M0 scales");
}

Result<std::byte*> reserve(base::Pages& pages, int64_t bytes, bool huge) {
  auto made = base::Pages::allocate(static_cast<size_t>(bytes), huge);
  if (!made) return made.status();
  pages = std::move(*made);
  return pages.data();
}

/// 8 * sum(w) * scale of every channel: what the halves of an int8 token code leave out.
void compensate(const std::byte* codes, const float* scales, int64_t channels, int64_t k, float* biases) {
  for (int64_t c = 0; c < channels; ++c) {
    int sum = 0;
    for (int64_t i = c * k / 2; i < (c + 1) * k / 2; ++i) {
      const auto pair = std::to_integer<uint8_t>(codes[i]);
      sum += format::int4_to_int(pair & 15) + format::int4_to_int(pair >> 4);
    }
    biases[c] = 8.0f * (static_cast<float>(sum) * scales[c]);
  }
}

}  // namespace

Result<std::unique_ptr<QuantisedLinear>> quantise_linear(const LinearWeights& weights,
                                                         std::string_view rule_name) {
  Result<Source> source = check(weights);
  if (!source) return source.status();
  Result<QuantRuleInfo> rule = weight_rule(rule_name);
  if (!rule) return rule.status();
  const int64_t experts = source->experts, channels = source->channels, k = source->k;
  const int bits = dtype_bits(rule->codes);
  if (bits == 4 && k % 2 != 0) {
    return invalid("weights have a reduction of " + std::to_string(k) + ": expected an even one with " +
                   dtype_name(rule->codes));
  }
  const bool grouped = rule->scales == DType::kFloat8E8M0;
  const int64_t pairs = (k + 63) / 64;
  const int64_t code_bytes = k * bits / 8;  // of one channel
  const int64_t scale_bytes = grouped ? pairs * 2 : static_cast<int64_t>(sizeof(float));

  auto result = std::make_unique<QuantisedLinear>();
  auto codes = reserve(result->codes_, experts * channels * code_bytes, /*huge=*/true);
  if (!codes) return codes.status();
  auto scales = reserve(result->scales_, experts * channels * scale_bytes, /*huge=*/false);
  if (!scales) return scales.status();
  for (const Source::Part& part : source->parts) {
    for (int64_t e = 0; e < experts; ++e) {
      const TensorView rows = source->matrix(part, e);
      const int64_t channel = e * channels + part.first_channel;
      const int64_t n = rows.shape[0];
      const TensorRef code_rows(*codes + channel * code_bytes, rule->codes, {n, k});
      std::byte* const scale_rows = *scales + channel * scale_bytes;
      MEGAMOE_RETURN_IF_ERROR(quantise(rule_name, rows, code_rows,
                                       grouped ? TensorRef(scale_rows, rule->scales, {n, pairs, 2})
                                               : TensorRef(scale_rows, rule->scales, {n})));
    }
  }
  LinearWeights& view = result->weights_;
  view.k_last = true;
  view.interleave = weights.interleave;
  (rule->codes == DType::kInt4 ? view.added_bias : view.bias) = weights.bias;
  view.weight = {TensorView(*codes, rule->codes, {experts, channels, k})};
  view.scale = {grouped ? TensorView(*scales, rule->scales, {experts, channels, pairs, 2})
                        : TensorView(*scales, rule->scales, {experts, channels})};
  if (rule->codes == DType::kInt4) {
    auto biases = reserve(result->biases_, experts * channels * static_cast<int64_t>(sizeof(float)), false);
    if (!biases) return biases.status();
    compensate(*codes, reinterpret_cast<const float*>(*scales), experts * channels, k,
               reinterpret_cast<float*>(*biases));
    view.bias = {TensorView(*biases, DType::kFloat32, {experts, channels})};
  }
  return result;
}

Result<std::unique_ptr<QuantisedLinear>> quantise_int4_groups(const LinearWeights& weights, int64_t group) {
  Result<Source> source = check(weights);
  if (!source) return source.status();
  const int64_t experts = source->experts, channels = source->channels, k = source->k;
  if (group != 32 && group != 64 && group != 128) {
    return invalid("group = " + std::to_string(group) + ": expected 32, 64 or 128");
  }
  if (k % 2 != 0) {
    return invalid("weights have a reduction of " + std::to_string(k) + ": expected an even one with int4");
  }
  const int64_t groups = (k + group - 1) / group;
  auto result = std::make_unique<QuantisedLinear>();
  auto codes = reserve(result->codes_, experts * channels * k / 2, /*huge=*/true);
  if (!codes) return codes.status();
  const int64_t scale_bytes = experts * channels * groups * static_cast<int64_t>(sizeof(float));
  auto scales = reserve(result->scales_, scale_bytes, /*huge=*/false);
  if (!scales) return scales.status();
  for (const Source::Part& part : source->parts) {
    for (int64_t e = 0; e < experts; ++e) {
      const TensorView rows = source->matrix(part, e);
      const int64_t channel = e * channels + part.first_channel;
      for (int64_t g = 0; g < groups; ++g) {
        TensorView x = rows;
        x.data = static_cast<const uint16_t*>(rows.data) + g * group * rows.strides[1];
        x.shape[1] = std::min(group, k - g * group);
        TensorRef code_rows(*codes + (channel * k + g * group) / 2, DType::kInt4, {x.shape[0], x.shape[1]});
        code_rows.strides[0] = k;
        TensorRef scale_rows(reinterpret_cast<float*>(*scales) + channel * groups + g, DType::kFloat32,
                             {x.shape[0]});
        scale_rows.strides[0] = groups;
        MEGAMOE_RETURN_IF_ERROR(quantise("int4_dynamic", x, code_rows, scale_rows));
      }
    }
  }
  LinearWeights& view = result->weights_;
  view.k_last = true;
  view.interleave = weights.interleave;
  view.bias = weights.bias;
  view.scale_group = group;
  view.weight = {TensorView(*codes, DType::kInt4, {experts, channels, k})};
  view.scale = {TensorView(*scales, DType::kFloat32, {experts, channels, groups})};
  return result;
}

Result<std::unique_ptr<QuantisedLinear>> quantise_e4m3_blocks(const LinearWeights& weights) {
  constexpr int64_t kBlock = 128;
  constexpr float kLargest = 448;
  Result<Source> source = check(weights);
  if (!source) return source.status();
  const int64_t experts = source->experts, channels = source->channels, k = source->k;
  const int64_t rows = (channels + kBlock - 1) / kBlock, columns = (k + kBlock - 1) / kBlock;
  auto result = std::make_unique<QuantisedLinear>();
  auto codes = reserve(result->codes_, experts * channels * k, /*huge=*/true);
  if (!codes) return codes.status();
  auto scales = reserve(result->scales_, experts * rows * columns * static_cast<int64_t>(sizeof(float)),
                        /*huge=*/false);
  if (!scales) return scales.status();
  // Every weight of an expert with the scale of its block; gate and up tensors are parts of one matrix.
  const auto each = [&](int64_t e, const auto& use) {
    float* const of_expert = reinterpret_cast<float*>(*scales) + e * rows * columns;
    for (const Source::Part& part : source->parts) {
      const TensorView matrix = source->matrix(part, e);
      for (int64_t n = 0; n < matrix.shape[0]; ++n) {
        const int64_t channel = part.first_channel + n;
        float* const row = of_expert + channel / kBlock * columns;
        for (int64_t i = 0; i < k; ++i) {
          const uint16_t weight =
              static_cast<const uint16_t*>(matrix.data)[n * matrix.strides[0] + i * matrix.strides[1]];
          use(format::bf16_to_float(weight), row[i / kBlock], (e * channels + channel) * k + i);
        }
      }
    }
  };
  for (int64_t e = 0; e < experts; ++e) {
    each(e, [](float weight, float& largest, int64_t) { largest = std::max(largest, std::fabs(weight)); });
    float* const of_expert = reinterpret_cast<float*>(*scales) + e * rows * columns;
    for (int64_t b = 0; b < rows * columns; ++b)
      of_expert[b] = of_expert[b] == 0 ? 1 : of_expert[b] / kLargest;
    each(e, [&](float weight, float scale, int64_t at) {
      (*codes)[at] = std::byte{format::e4m3_from_float(weight / scale, /*saturate=*/true)};
    });
  }
  LinearWeights& view = result->weights_;
  view.k_last = true;
  view.interleave = weights.interleave;
  view.bias = weights.bias;
  view.scale_group = kBlock;
  view.weight = {TensorView(*codes, DType::kFloat8E4M3, {experts, channels, k})};
  view.scale = {TensorView(*scales, DType::kFloat32, {experts, rows, columns})};
  return result;
}

}  // namespace megamoe::checkpoint
