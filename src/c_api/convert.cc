// Structs of the C interface -> those of the C++ interface, whatever version of the struct the caller has.
#include "c_api/convert.h"

#include <algorithm>
#include <iterator>

namespace megamoe::c_api {
namespace {

static_assert(MEGAMOE_MAX_DIMS == kMaxDims);
constexpr bool is(int code, Code expected) {
  return code == static_cast<int>(expected);
}
static_assert(is(MEGAMOE_OK, Code::kOk));
static_assert(is(MEGAMOE_INVALID_ARGUMENT, Code::kInvalidArgument));
static_assert(is(MEGAMOE_INVALID_TYPE, Code::kInvalidType));
static_assert(is(MEGAMOE_UNSUPPORTED, Code::kUnsupported));
static_assert(is(MEGAMOE_CAPACITY, Code::kCapacity));
static_assert(is(MEGAMOE_SETTINGS_DIFFER, Code::kSettingsDiffer));
static_assert(is(MEGAMOE_PEER_FAILED, Code::kPeerFailed));
static_assert(is(MEGAMOE_TIMED_OUT, Code::kTimedOut));
static_assert(is(MEGAMOE_OUT_OF_MEMORY, Code::kOutOfMemory));
static_assert(is(MEGAMOE_SYSTEM, Code::kSystem));
static_assert(is(MEGAMOE_CLOSED, Code::kClosed));
static_assert(is(MEGAMOE_DATA_LOSS, Code::kDataLoss));
static_assert(MEGAMOE_LAYOUT_ND == static_cast<int>(Layout::kNd));
static_assert(MEGAMOE_LAYOUT_FRACTAL_NZ == static_cast<int>(Layout::kFractalNz));
static_assert(MEGAMOE_LAYOUT_FRACTAL_NZ_C0_32 == static_cast<int>(Layout::kFractalNzC0_32));

Status invalid(const char* name, const char* field, int64_t got, const std::string& expected) {
  return Status(Code::kInvalidArgument,
                std::string(name) + "." + field + " = " + std::to_string(got) + ": expected " + expected);
}

template <class Tensor>
Result<Tensor> to_tensor(const megamoe_tensor* given, const char* name) {
  if (given == nullptr)
    return Status(Code::kInvalidArgument, std::string(name) + " = null: expected a tensor");
  if (given->dims < 0 || given->dims > kMaxDims) {
    return invalid(name, "dims", given->dims, "0 to " + std::to_string(kMaxDims));
  }
  const auto dtype = static_cast<DType>(given->dtype);
  if (dtype_bits(dtype) == 0) return invalid(name, "dtype", given->dtype, "a number from megamoe_dtype");
  if (given->layout < 0 || given->layout > static_cast<int>(Layout::kFractalNzC0_32)) {
    return invalid(name, "layout", given->layout, "a layout");
  }
  Tensor t;
  t.data = given->data;
  t.dtype = dtype;
  t.layout = static_cast<Layout>(given->layout);
  t.dims = given->dims;
  std::copy(std::begin(given->shape), std::end(given->shape), t.shape);
  std::copy(std::begin(given->strides), std::end(given->strides), t.strides);
  return t;
}

/// A longer list than `most` is refused before it is read.
Result<std::vector<TensorView>> to_list(const megamoe_tensor* tensors, int64_t count, const char* name,
                                        int64_t most) {
  if (count < 0 || (count > 0 && tensors == nullptr)) {
    return Status(Code::kInvalidArgument,
                  std::string(name) + " has " + std::to_string(count) + " tensors: expected a list of them");
  }
  if (count > most) {
    return Status(Code::kInvalidArgument, std::string(name) + " has " + std::to_string(count) +
                                              " tensors: expected one, or one per expert, of at most " +
                                              std::to_string(most) + " experts");
  }
  std::vector<TensorView> list;
  for (int64_t i = 0; i < count; ++i) {
    auto view = to_view(tensors + i, name);
    if (!view) return view.status();
    list.push_back(*view);
  }
  return list;
}

/// Experts of weights that are not checked yet; at least one.
int64_t experts_of(const std::vector<TensorView>& weight) {
  const bool stacked = weight.size() == 1 && weight[0].dims == 3;
  return std::max<int64_t>(1, stacked ? weight[0].shape[0] : static_cast<int64_t>(weight.size()));
}

}  // namespace

Result<TensorView> to_view(const megamoe_tensor* tensor, const char* name) {
  return to_tensor<TensorView>(tensor, name);
}
Result<TensorRef> to_ref(const megamoe_tensor* tensor, const char* name) {
  return to_tensor<TensorRef>(tensor, name);
}

Status to_optional_dtype(int32_t number, const char* name, const char* field, DType& out) {
  out = static_cast<DType>(number);
  if (out == DType::kUndefined || dtype_bits(out) != 0) return Status::ok();
  return invalid(name, field, number, "a number from megamoe_dtype or -1");
}

megamoe_tensor from_ref(const TensorRef& tensor) {
  megamoe_tensor t = {};
  t.data = tensor.data;
  t.dtype = static_cast<int32_t>(tensor.dtype);
  t.layout = static_cast<int32_t>(tensor.layout);
  t.dims = tensor.dims;
  std::copy(std::begin(tensor.shape), std::end(tensor.shape), t.shape);
  std::copy(std::begin(tensor.strides), std::end(tensor.strides), t.strides);
  return t;
}

Status to_isa(const char* name, std::optional<Isa>& out) {
  if (name == nullptr) return Status::ok();
  auto isa = isa_from_name(name);
  if (!isa) return isa.status();
  out = *isa;
  return Status::ok();
}

Result<BufferConfig> to_config(const megamoe_buffer_config* config) {
  megamoe_buffer_config c;
  megamoe_init_buffer_config(&c, sizeof c);
  MEGAMOE_RETURN_IF_ERROR(read_struct(config, "config", c));
  BufferConfig result;
  result.num_experts = c.num_experts;
  result.num_max_tokens_per_rank = c.num_max_tokens_per_rank;
  result.num_topk = c.num_topk;
  result.hidden = c.hidden;
  result.intermediate_hidden = c.intermediate_hidden;
  result.max_recv_token_num = c.max_recv_token_num;
  result.dispatch_quant_mode = c.dispatch_quant_mode;
  MEGAMOE_RETURN_IF_ERROR(to_optional_dtype(c.dispatch_quant_out_dtype, "config", "dispatch_quant_out_dtype",
                                            result.dispatch_quant_out_dtype));
  result.combine_quant_mode = c.combine_quant_mode;
  result.topk_weights_type = c.topk_weights_type;
  result.topo_type = c.topo_type;
  result.rank_num_per_server = c.rank_num_per_server;
  result.combine_comm_mode = c.combine_comm_mode;
  if (c.comm_alg != nullptr) result.comm_alg = c.comm_alg;
  if (c.profile != nullptr) result.profile = c.profile;
  result.ccl_buffer_size = c.ccl_buffer_size;
  return result;
}

Result<BufferOptions> to_options(const megamoe_buffer_options* options) {
  BufferOptions result;
  if (options == nullptr) return result;
  megamoe_buffer_options o;
  megamoe_init_buffer_options(&o, sizeof o);
  MEGAMOE_RETURN_IF_ERROR(read_struct(options, "options", o));
  result.threads = o.threads;
  result.deadline = std::chrono::milliseconds(o.deadline_ms);
  MEGAMOE_RETURN_IF_ERROR(to_isa(o.isa, result.isa));
  return result;
}

Result<LinearWeights> to_weights(const megamoe_linear_weights* weights, const char* name,
                                 int64_t most_experts) {
  megamoe_linear_weights w;
  megamoe_init_linear_weights(&w, sizeof w);
  MEGAMOE_RETURN_IF_ERROR(read_struct(weights, name, w));
  LinearWeights result;
  const struct {
    const char* suffix;
    const megamoe_tensor* tensors;
    int64_t count;
    std::vector<TensorView>& out;
  } lists[] = {{"", w.weight, w.weight_count, result.weight},
               {".scale", w.scale, w.scale_count, result.scale},
               {".up", w.up, w.up_count, result.up},
               {".bias", w.bias, w.bias_count, result.bias},
               {".added_bias", w.added_bias, w.added_bias_count, result.added_bias},
               {".zero", w.zero, w.zero_count, result.zero}};
  int64_t most = most_experts;
  for (const auto& list : lists) {
    auto converted = to_list(list.tensors, list.count, (std::string(name) + list.suffix).c_str(), most);
    if (!converted) return converted.status();
    list.out = std::move(*converted);
    // The weights, which come first, say how many experts there are.
    most = std::min(most, experts_of(result.weight));
  }
  result.k_last = w.k_last != 0;
  result.interleave = w.interleave;
  result.scale_group = w.scale_group;
  return result;
}

Activation to_activation(const megamoe_layer& layer) {
  Activation result;
  if (layer.activation != nullptr) result.name = layer.activation;
  const struct {
    uint32_t bit;
    std::optional<double> Activation::*field;
    double value;
  } parameters[] = {{MEGAMOE_HAS_CLAMP, &Activation::clamp, layer.clamp},
                    {MEGAMOE_HAS_ALPHA, &Activation::alpha, layer.alpha},
                    {MEGAMOE_HAS_BETA, &Activation::beta, layer.beta},
                    {MEGAMOE_HAS_LINEAR_BETA, &Activation::linear_beta, layer.linear_beta}};
  for (const auto& p : parameters) {
    if ((layer.activation_has & p.bit) != 0) result.*p.field = p.value;
  }
  return result;
}

}  // namespace megamoe::c_api
