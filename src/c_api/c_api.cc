// The functions of the C interface: each turns statuses and exceptions into a code and a message of the
// thread.
#include <algorithm>

#include "c_api/convert.h"
#include "c_api/guard.h"
#include "megamoe/version.h"
#include "moe/limits.h"

struct megamoe_group {
  megamoe::Group group;
};
struct megamoe_buffer {
  std::shared_ptr<megamoe::SymmBuffer> buffer;
};
struct megamoe_packed_weights {
  std::shared_ptr<const megamoe::PackedWeights> packed;
};
struct megamoe_op {
  std::shared_ptr<megamoe::SymmBuffer> buffer;
  std::unique_ptr<megamoe::MegaMoe> op;
  std::string description;
};

namespace megamoe::c_api {
namespace {

thread_local std::string last_error;

}  // namespace

int32_t report(const Status& status) noexcept {
  if (status) return 0;
  try {
    last_error = status.message();
  } catch (...) {
    last_error.clear();
  }
  return static_cast<int32_t>(status.code());
}

namespace {

Status pack(const megamoe_linear_weights* weights, const char* name, megamoe_packed_weights** packed,
            Result<std::shared_ptr<const PackedWeights>> (*make)(const LinearWeights&, bool, int), bool gated,
            int32_t threads) {
  if (packed == nullptr) return null_argument("packed");
  auto converted = to_weights(weights, name, moe::kMaxExperts);
  if (!converted) return converted.status();
  auto made = make(*converted, gated, threads);
  if (!made) return made.status();
  *packed = new megamoe_packed_weights{std::move(*made)};
  return Status::ok();
}

Status optional_weights(const megamoe_linear_weights* given, const char* name, int64_t most_experts,
                        LinearWeights& out) {
  if (given == nullptr) return Status::ok();
  auto converted = to_weights(given, name, most_experts);
  if (!converted) return converted.status();
  out = std::move(*converted);
  return Status::ok();
}

Status create_op(const megamoe_buffer* buffer, const megamoe_layer* layer, megamoe_op** op) {
  if (buffer == nullptr) return null_argument("buffer");
  if (op == nullptr) return null_argument("op");
  megamoe_layer given;
  megamoe_init_layer(&given, sizeof given);
  MEGAMOE_RETURN_IF_ERROR(read_struct(layer, "layer", given));
  Layer converted;
  converted.activation = to_activation(given);
  if (given.packed1 != nullptr) converted.packed1 = given.packed1->packed;
  if (given.packed2 != nullptr) converted.packed2 = given.packed2->packed;
  if (given.shared_packed1 != nullptr) converted.shared_packed1 = given.shared_packed1->packed;
  if (given.shared_packed2 != nullptr) converted.shared_packed2 = given.shared_packed2->packed;
  const int64_t experts = buffer->buffer->experts_per_rank();
  const struct {
    const char* name;
    const megamoe_linear_weights* given;
    int64_t most_experts;
    LinearWeights& out;
  } weights[] = {{"weight1", given.weight1, experts, converted.weight1},
                 {"weight2", given.weight2, experts, converted.weight2},
                 {"shared_weight1", given.shared_weight1, moe::kMaxSharedExperts, converted.shared_weight1},
                 {"shared_weight2", given.shared_weight2, moe::kMaxSharedExperts, converted.shared_weight2}};
  for (const auto& w : weights) {
    MEGAMOE_RETURN_IF_ERROR(optional_weights(w.given, w.name, w.most_experts, w.out));
  }
  MEGAMOE_RETURN_IF_ERROR(to_optional_dtype(given.shared_expert_quant_out_dtype, "layer",
                                            "shared_expert_quant_out_dtype",
                                            converted.shared_expert_quant_out_dtype));
  if (given.tuning_file != nullptr) {
    auto tuning = Tuning::read(given.tuning_file);
    if (!tuning) return tuning.status();
    converted.tuning = std::move(*tuning);
  }
  auto made = MegaMoe::create(buffer->buffer, std::move(converted));
  if (!made) return made.status();
  std::string description = (*made)->describe();
  *op = new megamoe_op{buffer->buffer, std::move(*made), std::move(description)};
  return Status::ok();
}

Result<CallArgs> to_args(const megamoe_call* call) {
  megamoe_call given;
  megamoe_init_call(&given, sizeof given);
  MEGAMOE_RETURN_IF_ERROR(read_struct(call, "call", given));
  CallArgs args;
  args.global_bs = given.global_bs;
  args.ccl_buffer_size = given.ccl_buffer_size;
  // Absent tensors stay absent: the call itself says which ones it needs.
  const struct {
    const char* name;
    const megamoe_tensor* given;
    TensorView& out;
  } inputs[] = {{"x", given.x, args.x},
                {"scales", given.scales, args.scales},
                {"topk_ids", given.topk_ids, args.topk_ids},
                {"topk_weights", given.topk_weights, args.topk_weights},
                {"x_active_mask", given.x_active_mask, args.x_active_mask}};
  const struct {
    const char* name;
    const megamoe_tensor* given;
    TensorRef& out;
  } outputs[] = {{"y", given.y, args.y},
                 {"expert_token_nums", given.expert_token_nums, args.expert_token_nums}};
  for (const auto& t : inputs) {
    if (t.given == nullptr) continue;
    auto view = to_view(t.given, t.name);
    if (!view) return view.status();
    t.out = *view;
  }
  for (const auto& t : outputs) {
    if (t.given == nullptr) continue;
    auto ref = to_ref(t.given, t.name);
    if (!ref) return ref.status();
    t.out = *ref;
  }
  return args;
}

Status run_op(megamoe_op* op, const megamoe_call* call) {
  if (op == nullptr) return null_argument("op");
  auto args = to_args(call);
  // The other ranks are in the call already and must learn of the error.
  if (!args) return op->buffer->refuse_call(args.status());
  return op->op->run(*args);
}

}  // namespace
}  // namespace megamoe::c_api

namespace api = megamoe::c_api;
using megamoe::Code;
using megamoe::Status;

extern "C" {

int32_t megamoe_c_version(void) {
  return MEGAMOE_C_VERSION;
}
const char* megamoe_version(void) {
  return megamoe::version();
}
const char* megamoe_last_error(void) {
  return api::last_error.c_str();
}
const char* megamoe_code_name(int32_t code) {
  return megamoe::code_name(static_cast<Code>(code));
}

int32_t megamoe_dtype(const char* name) {
  return name == nullptr ? -1 : static_cast<int32_t>(megamoe::dtype_from_name(name));
}

megamoe_tensor megamoe_row_major(void* data, int32_t dtype, int32_t dims, const int64_t* shape) {
  megamoe::TensorRef row_major;
  row_major.dims = std::clamp(dims, 0, MEGAMOE_MAX_DIMS);
  if (shape != nullptr) std::copy_n(shape, row_major.dims, row_major.shape);
  row_major.set_contiguous();
  row_major.data = data;
  row_major.dtype = static_cast<megamoe::DType>(dtype);
  megamoe_tensor t = api::from_ref(row_major);
  t.dims = dims;  // a number out of range stays, for the call to refuse
  return t;
}

int32_t megamoe_group_self(megamoe_group** group) {
  return api::guarded([&] {
    if (group == nullptr) return api::null_argument("group");
    *group = new megamoe_group{megamoe::Group::self()};
    return Status::ok();
  });
}

int32_t megamoe_group_local(int32_t size, megamoe_group** groups) {
  return api::guarded([&] {
    if (groups == nullptr) return api::null_argument("groups");
    auto made = megamoe::Group::local(size);
    if (!made) return made.status();
    std::vector<std::unique_ptr<megamoe_group>> handles;
    for (megamoe::Group& group : *made)
      handles.push_back(std::make_unique<megamoe_group>(megamoe_group{group}));
    for (size_t i = 0; i < handles.size(); ++i) groups[i] = handles[i].release();
    return Status::ok();
  });
}

int32_t megamoe_group_shm(const char* key, int32_t rank, int32_t size, megamoe_group** group) {
  return api::guarded([&] {
    if (key == nullptr) return api::null_argument("key");
    if (group == nullptr) return api::null_argument("group");
    auto made = megamoe::Group::shm(key, rank, size);
    if (!made) return made.status();
    *group = new megamoe_group{std::move(*made)};
    return Status::ok();
  });
}

void megamoe_group_release(megamoe_group* group) {
  delete group;
}

void megamoe_init_buffer_config(megamoe_buffer_config* config, size_t struct_size) {
  megamoe_buffer_config defaults = {};
  defaults.dispatch_quant_out_dtype = -1;
  defaults.rank_num_per_server = megamoe::BufferConfig().rank_num_per_server;
  api::init_struct(config, struct_size, defaults);
}

void megamoe_init_buffer_options(megamoe_buffer_options* options, size_t struct_size) {
  megamoe_buffer_options defaults = {};
  defaults.deadline_ms = megamoe::BufferOptions().deadline.count();
  api::init_struct(options, struct_size, defaults);
}

int32_t megamoe_buffer_create(const megamoe_group* group, const megamoe_buffer_config* config,
                              const megamoe_buffer_options* options, megamoe_buffer** buffer) {
  return api::guarded([&] {
    if (group == nullptr) return api::null_argument("group");
    if (buffer == nullptr) return api::null_argument("buffer");
    auto converted = api::to_config(config);
    auto chosen = api::to_options(options);
    // The other ranks are in the creation already and must learn of the error.
    if (!converted || !chosen) {
      return megamoe::SymmBuffer::refuse_creation(group->group,
                                                  converted ? chosen.status() : converted.status());
    }
    auto made = megamoe::SymmBuffer::create(group->group, *converted, *chosen);
    if (!made) return made.status();
    *buffer = new megamoe_buffer{std::move(*made)};
    return Status::ok();
  });
}

int32_t megamoe_buffer_destroy(megamoe_buffer* buffer) {
  return api::guarded([&] {
    if (buffer == nullptr) return api::null_argument("buffer");
    buffer->buffer->destroy();
    return Status::ok();
  });
}

void megamoe_buffer_release(megamoe_buffer* buffer) {
  delete buffer;
}

int64_t megamoe_buffer_experts_per_rank(const megamoe_buffer* buffer) {
  return buffer == nullptr ? 0 : buffer->buffer->experts_per_rank();
}

int32_t megamoe_buffer_refuse_call(megamoe_buffer* buffer, int32_t code, const char* message) {
  return api::guarded([&] {
    if (buffer == nullptr) return api::null_argument("buffer");
    Status why(static_cast<Code>(code), message == nullptr ? "" : message);
    // The other ranks are in the call already: it ends with an error whatever stands here.
    if (code <= 0 || code > static_cast<int32_t>(Code::kDataLoss)) {
      why = Status(Code::kInvalidArgument, "code = " + std::to_string(code) +
                                               ": expected that of an error, 1 to " +
                                               std::to_string(static_cast<int32_t>(Code::kDataLoss)));
    } else if (message == nullptr) {
      why = Status(Code::kInvalidArgument, "message = null: expected the text of the error");
    }
    return buffer->buffer->refuse_call(why);
  });
}

int32_t megamoe_ccl_buffer_size(int64_t ep_world_size, const megamoe_buffer_config* config, int64_t* bytes) {
  return api::guarded([&] {
    if (bytes == nullptr) return api::null_argument("bytes");
    auto converted = api::to_config(config);
    if (!converted) return converted.status();
    auto size = megamoe::mega_moe_ccl_buffer_size(ep_world_size, *converted);
    if (!size) return size.status();
    *bytes = *size;
    return Status::ok();
  });
}

void megamoe_init_linear_weights(megamoe_linear_weights* weights, size_t struct_size) {
  api::init_struct(weights, struct_size, megamoe_linear_weights{});
}

int32_t megamoe_pack_linear1(const megamoe_linear_weights* weights, int32_t gated, int32_t threads,
                             megamoe_packed_weights** packed) {
  return api::guarded([&] {
    return api::pack(weights, "weight1", packed, megamoe::PackedWeights::pack_linear1, gated != 0, threads);
  });
}

int32_t megamoe_pack_linear2(const megamoe_linear_weights* weights, int32_t threads,
                             megamoe_packed_weights** packed) {
  constexpr auto make = [](const megamoe::LinearWeights& w, bool, int n) {
    return megamoe::PackedWeights::pack_linear2(w, n);
  };
  return api::guarded([&] { return api::pack(weights, "weight2", packed, make, false, threads); });
}

int64_t megamoe_packed_weights_bytes(const megamoe_packed_weights* packed) {
  return packed == nullptr ? 0 : packed->packed->bytes();
}

void megamoe_packed_weights_release(megamoe_packed_weights* packed) {
  delete packed;
}

void megamoe_init_layer(megamoe_layer* layer, size_t struct_size) {
  megamoe_layer defaults = {};
  defaults.shared_expert_quant_out_dtype = -1;
  api::init_struct(layer, struct_size, defaults);
}

int32_t megamoe_op_create(const megamoe_buffer* buffer, const megamoe_layer* layer, megamoe_op** op) {
  return api::guarded([&] { return api::create_op(buffer, layer, op); });
}

void megamoe_op_release(megamoe_op* op) {
  delete op;
}

const char* megamoe_op_describe(const megamoe_op* op) {
  return op == nullptr ? "" : op->description.c_str();
}

void megamoe_init_call(megamoe_call* call, size_t struct_size) {
  api::init_struct(call, struct_size, megamoe_call{});
}

int32_t megamoe_op_run(megamoe_op* op, const megamoe_call* call) {
  return api::guarded([&] { return api::run_op(op, call); });
}

}  // extern "C"
