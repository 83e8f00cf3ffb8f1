// How the weights of a layer are handed over: the forms that a profile takes, and weights brought into one.
#include "cli/weight_forms.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "base/memory.h"
#include "format/fractal.h"
#include "moe/quantities.h"
#include "pack/weight_matrix.h"
#include "pack/weight_types.h"

namespace megamoe::cli {
namespace {

constexpr int64_t kGroup = 128;  // of group scales

std::vector<WeightForm> all_forms() {
  std::vector<WeightForm> forms;
  for (const Layout layout : {Layout::kNd, Layout::kFractalNz, Layout::kFractalNzC0_32}) {
    for (const bool stacked : {true, false}) {
      for (const bool k_last : {false, true}) {
        for (const DType scales : {DType::kFloat32, DType::kUInt64}) {
          forms.push_back({stacked, k_last, layout, scales});
        }
      }
    }
  }
  return forms;
}

/// The first of `candidates` for both layers that a profile takes. `apply(first, second, layer)` puts them
/// into the layer.
template <class Candidates, class Apply>
bool choose_forms(const Candidates& candidates, const BufferConfig& config, int64_t ranks, DType codes,
                  Layer& layer, const Apply& apply) {
  const moe::Profile profile = *moe::find_profile(config.profile);
  const auto activation = moe::plan_activation(layer.activation);
  if (!activation) return false;
  for (const auto& first : candidates) {
    for (const auto& second : candidates) {
      apply(first, second, layer);
      moe::Quantities quantities = moe::quantities_of(config, ranks);
      moe::add_layer(layer, *activation, codes, quantities);
      if (moe::check_limits(profile, moe::LimitStage::kLayer, quantities)) return true;
    }
  }
  return false;
}

/// What a profile sees of weights in a form: types and shapes without data.
LinearWeights described(const LinearWeights& weights, const WeightForm& form) {
  const int64_t experts = static_cast<int64_t>(weights.weight.size()) > 1 || weights.weight[0].dims == 2
                              ? static_cast<int64_t>(weights.weight.size())
                              : weights.weight[0].shape[0];
  const auto list = [&](const std::vector<TensorView>& given, DType type, int dims) {
    if (given.empty()) return given;
    TensorView t(nullptr, type, {});
    t.layout = dims == 2 ? form.layout : Layout::kNd;
    t.dims = dims + (form.stacked ? 1 : 0);
    t.shape[0] = form.stacked ? experts : 1;
    return std::vector<TensorView>(static_cast<size_t>(form.stacked ? 1 : experts), t);
  };
  const auto scale_type = [&](DType given) {
    return given == DType::kFloat32 || given == DType::kUInt64 ? form.channel_scales : given;
  };
  LinearWeights result;
  result.k_last = form.k_last;
  result.scale_group = weights.scale_group;
  result.weight = list(weights.weight, pack::with_nibbles(weights).weight[0].dtype, 2);
  if (!weights.scale.empty()) {
    const DType type = weights.scale[0].dtype;
    result.scale = list(weights.scale, scale_type(type), type == DType::kFloat8E8M0 ? 3 : 1);
  }
  result.bias = list(weights.bias, DType::kFloat32, 1);
  result.added_bias = list(weights.added_bias, DType::kFloat32, 1);
  return result;
}

/// Copies weights with channel or MX scales, or none, into a form: gate columns, then up columns.
class FormCopy {
 public:
  FormCopy(const LinearWeights& given, bool gated, FormMemory& memory)
      : from_(pack::with_nibbles(given)), memory_(memory) {
    const TensorView& first = from_.weight[0];
    stacked_ = pack::is_stacked(from_.weight);
    experts_ = pack::experts_of(from_.weight);
    k_ = first.shape[first.dims - (from_.k_last ? 1 : 2)];
    part_ = first.shape[first.dims - (from_.k_last ? 2 : 1)];
    n_ = from_.up.empty() ? part_ : 2 * part_;
    run_ = gated && from_.interleave != 0 ? from_.interleave : 0;
  }

  Result<LinearWeights> to(const WeightForm& form) const {
    LinearWeights result;
    result.k_last = form.k_last;
    MEGAMOE_RETURN_IF_ERROR(copy_weight(form, result.weight));
    if (!from_.scale.empty() && from_.scale[0].dtype == DType::kFloat8E8M0) {
      const int64_t pairs = base::ceil_div(k_, 64);
      MEGAMOE_RETURN_IF_ERROR(copy_columns(form, DType::kFloat8E8M0, {pairs, 2}, result.scale,
                                           [&](int64_t e, int64_t n, std::byte* out) {
                                             for (int64_t g = 0; g < 2 * pairs; ++g)
                                               out[g] = std::byte{pack::mx_scale(from_.scale, e, n, g)};
                                           }));
    } else if (!from_.scale.empty()) {
      MEGAMOE_RETURN_IF_ERROR(copy_columns(
          form, form.channel_scales, {}, result.scale, [&](int64_t e, int64_t n, std::byte* out) {
            const uint64_t bits = std::bit_cast<uint32_t>(pack::channel_scale(from_.scale, e, n));
            std::memcpy(out, &bits, static_cast<size_t>(dtype_bits(form.channel_scales) / 8));
          }));
    }
    for (const auto& [given, out] :
         {std::pair{&from_.bias, &result.bias}, std::pair{&from_.added_bias, &result.added_bias}}) {
      if (given->empty()) continue;
      MEGAMOE_RETURN_IF_ERROR(
          copy_columns(form, DType::kFloat32, {}, *out, [&](int64_t e, int64_t n, std::byte* to) {
            const float value = pack::channel_bias(*given, e, n);
            std::memcpy(to, &value, sizeof value);
          }));
    }
    return result;
  }

 private:
  /// Column of scales and biases, and of a single tensor, that stands at column n of the copy.
  int64_t source_column(int64_t n) const {
    if (run_ == 0) return n;
    const int64_t half = n_ / 2, c = n % half;
    return c / run_ * 2 * run_ + n / half * run_ + c % run_;
  }

  Result<std::byte*> reserve(int64_t bytes) const {
    auto made = base::Pages::allocate(static_cast<size_t>(bytes), /*huge=*/false);
    if (!made) return made.status();
    auto pages = std::make_shared<base::Pages>(std::move(*made));
    memory_.push_back(pages);
    return pages->data();
  }

  /// One tensor of all experts or one for each, `elements` apart.
  void add_views(const WeightForm& form, const TensorView& of_expert, int64_t elements,
                 std::vector<TensorView>& out) const {
    if (!form.stacked) {
      for (int64_t e = 0; e < experts_; ++e) {
        out.push_back(of_expert);
        out.back().data =
            static_cast<const std::byte*>(of_expert.data) + e * elements * dtype_bits(of_expert.dtype) / 8;
      }
      return;
    }
    TensorView stacked(of_expert.data, of_expert.dtype, {experts_}, of_expert.layout);
    for (int d = 0; d < of_expert.dims; ++d) stacked.shape[stacked.dims++] = of_expert.shape[d];
    stacked.set_contiguous();
    out.push_back(stacked);
  }

  Status copy_weight(const WeightForm& form, std::vector<TensorView>& out) const {
    const DType type = from_.weight[0].dtype;
    const int64_t rows = form.k_last ? n_ : k_, columns = form.k_last ? k_ : n_;
    const int bits = dtype_bits(type);
    const int64_t c0 = format::fractal_c0(type, form.layout);
    const int64_t elements =
        form.layout == Layout::kNd ? rows * columns : format::Fractal{rows, columns, c0}.elements();
    auto data = reserve(experts_ * elements * bits / 8);
    if (!data) return data.status();
    add_views(form, TensorView(*data, type, {rows, columns}, form.layout), elements, out);
    for (int64_t e = 0; e < experts_; ++e) {
      const pack::WeightMatrix to = pack::weight_matrix(out, form.k_last, e);
      for (int64_t n = 0; n < n_; ++n) {
        const int64_t column = source_column(n);
        const bool up = !from_.up.empty() && column >= part_;
        const pack::WeightMatrix from = pack::weight_matrix(up ? from_.up : from_.weight, from_.k_last, e);
        for (int64_t k = 0; k < k_; ++k) {
          copy_element(bits, from.data, from.offset(k, up ? column - part_ : column),
                       const_cast<std::byte*>(to.data), to.offset(k, n));
        }
      }
    }
    return Status::ok();
  }

  static void copy_element(int bits, const std::byte* from, int64_t i, std::byte* to, int64_t j) {
    if (bits != 4) {
      const int64_t bytes = bits / 8;
      std::memcpy(to + j * bytes, from + i * bytes, static_cast<size_t>(bytes));
      return;
    }
    const std::byte nibble = from[i / 2] >> (i % 2 * 4) & std::byte{15};
    to[j / 2] |= nibble << (j % 2 * 4);  // the memory is zero before
  }

  /// (experts, columns, more...) of a type; `get(expert, column, out)` writes what belongs to a column.
  template <class Get>
  Status copy_columns(const WeightForm& form, DType type, std::initializer_list<int64_t> more,
                      std::vector<TensorView>& out, const Get& get) const {
    TensorView of_expert(nullptr, type, {n_});
    for (const int64_t extent : more) of_expert.shape[of_expert.dims++] = extent;
    of_expert.set_contiguous();
    const int64_t bytes = of_expert.strides[0] * dtype_bits(type) / 8;
    auto data = reserve(experts_ * n_ * bytes);
    if (!data) return data.status();
    of_expert.data = *data;
    for (int64_t e = 0; e < experts_; ++e) {
      for (int64_t n = 0; n < n_; ++n) get(e, source_column(n), *data + (e * n_ + n) * bytes);
    }
    add_views(form, of_expert, of_expert.elements(), out);
    return Status::ok();
  }

  LinearWeights from_;
  FormMemory& memory_;
  bool stacked_ = false;
  int64_t experts_ = 0, k_ = 0, n_ = 0;
  int64_t part_ = 0;  ///< columns of one tensor
  int64_t run_ = 0;   ///< gate columns that stand together in one tensor; 0 = all
};

/// Brings a pair of layers into the chosen forms, unless they keep theirs.
using Choice = std::optional<WeightForm>;
Status copy_pair(const Choice& first, const Choice& second, bool gated, LinearWeights& weight1,
                 LinearWeights& weight2, FormMemory& memory) {
  for (const auto& [form, weights, with_up] :
       {std::tuple{&first, &weight1, gated}, std::tuple{&second, &weight2, false}}) {
    if (!*form) continue;
    auto copied = FormCopy(*weights, with_up, memory).to(**form);
    if (!copied) return copied.status();
    *weights = std::move(*copied);
  }
  return Status::ok();
}

}  // namespace

LinearWeights OneElementWeights::linear(const moe::Scenario& scenario, const WeightForm& form, bool bias,
                                        int64_t experts, int64_t k, int64_t n) const {
  const auto repeated = [&](DType dtype, std::vector<int64_t> shape, Layout layout = Layout::kNd) {
    TensorView view(&element_, dtype, {}, layout);
    if (form.stacked) view.shape[view.dims++] = experts;
    for (const int64_t extent : shape) view.shape[view.dims++] = extent;
    return std::vector<TensorView>(static_cast<size_t>(form.stacked ? 1 : experts), view);
  };
  const pack::ScaleKind scales = scenario.weight_scales;
  LinearWeights weights;
  weights.k_last = form.k_last;
  weights.weight =
      repeated(scenario.weight, form.k_last ? std::vector{n, k} : std::vector{k, n}, form.layout);
  if (scales == pack::ScaleKind::kChannel) weights.scale = repeated(form.channel_scales, {n});
  if (scales == pack::ScaleKind::kMx) {
    weights.scale = repeated(DType::kFloat8E8M0, {n, base::ceil_div(k, 64), 2});
  }
  if (pack::is_grouped(scales)) {
    const int64_t rows = scales == pack::ScaleKind::kBlocks ? base::ceil_div(n, kGroup) : n;
    weights.scale_group = kGroup;
    weights.scale = repeated(DType::kFloat32, {rows, base::ceil_div(k, kGroup)});
  }
  if (bias) weights.bias = repeated(DType::kFloat32, {n});
  return weights;
}

Layer OneElementWeights::layer(const moe::Scenario& scenario, const BufferConfig& config, int64_t ranks,
                               int64_t experts, const LayerExtras& extras) const {
  struct Candidate {
    WeightForm form;
    bool bias;
  };
  std::vector<Candidate> candidates;
  for (const bool bias : {false, true}) {
    for (const WeightForm& form : all_forms()) {
      // Elements that are all one have no steps, which ND nibbles need.
      if (dtype_bits(scenario.weight) == 4 && form.layout == Layout::kNd) continue;
      if (format::fractal_c0(scenario.weight, form.layout) == 0 && form.layout != Layout::kNd) continue;
      candidates.push_back({form, bias});
    }
  }
  const int64_t wide = 2 * config.intermediate_hidden;
  const int64_t inner = is_gated(extras.activation) ? config.intermediate_hidden : wide;
  Layer layer;
  layer.activation = extras.activation;
  const auto choose = [&](int64_t count, LinearWeights& weight1, LinearWeights& weight2) {
    const auto apply = [&](const Candidate& first, const Candidate& second, Layer&) {
      weight1 = linear(scenario, first.form, first.bias, count, config.hidden, wide);
      weight2 = linear(scenario, second.form, second.bias, count, inner, config.hidden);
    };
    if (!choose_forms(candidates, config, ranks, scenario.token_codec->codes(), layer, apply)) {
      apply(candidates[0], candidates[0], layer);
    }
  };
  choose(experts, layer.weight1, layer.weight2);
  if (extras.shared_experts > 0) choose(extras.shared_experts, layer.shared_weight1, layer.shared_weight2);
  return layer;
}

Status take_profile_form(LayerJob& job, const moe::Scenario& scenario, int64_t ranks, FormMemory& memory) {
  if (!moe::find_profile(job.config.profile)) return Status::ok();  // the buffer names those there are
  if (pack::is_grouped(scenario.weight_scales)) return Status::ok();
  std::vector<Choice> candidates = {std::nullopt};  // as they are
  for (const WeightForm& form : all_forms()) {
    const bool possible = form.layout == Layout::kNd ||
                          (!form.stacked && format::fractal_c0(scenario.weight, form.layout) != 0);
    if (possible) candidates.push_back(form);
  }
  const BufferConfig config = largest_batch_config(job, static_cast<int>(ranks));
  const DType codes = scenario.token_codec->codes();
  const auto form_of = [](const LinearWeights& weights, const Choice& form) {
    return form ? described(weights, *form) : weights;
  };
  Choice first, second;
  Layer layer;
  layer.activation = job.activation;
  if (!choose_forms(candidates, config, ranks, codes, layer,
                    [&](const Choice& one, const Choice& two, Layer& out) {
                      out.weight1 = form_of(job.weight1, first = one);
                      out.weight2 = form_of(job.weight2, second = two);
                    })) {
    return Status::ok();  // the plan of the layer says what the profile expects
  }
  const bool gated = is_gated(job.activation);
  MEGAMOE_RETURN_IF_ERROR(copy_pair(first, second, gated, job.weight1, job.weight2, memory));
  if (job.shared_weight1.weight.empty()) return Status::ok();
  if (!choose_forms(candidates, config, ranks, codes, layer,
                    [&](const Choice& one, const Choice& two, Layer& out) {
                      out.shared_weight1 = form_of(job.shared_weight1, first = one);
                      out.shared_weight2 = form_of(job.shared_weight2, second = two);
                    })) {
    return Status::ok();
  }
  return copy_pair(first, second, gated, job.shared_weight1, job.shared_weight2, memory);
}

}  // namespace megamoe::cli
