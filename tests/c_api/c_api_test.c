/* The C interface from plain C: a layer small enough to compute by hand, versioned structs, errors with
 * messages. */
#include "megamoe/c.h"

#include <stdio.h>
#include <string.h>

static int failures = 0;

static void check(int good, int line, const char* what) {
  if (good) return;
  ++failures;
  printf("%d: %s; last error: %s\n", line, what, megamoe_last_error());
}
#define CHECK(condition) check((condition), __LINE__, #condition)

static int error_is(int32_t code, int32_t expected, const char* message) {
  return code == expected && strcmp(megamoe_last_error(), message) == 0;
}
static int invalid(int32_t code, const char* message) {
  return error_is(code, MEGAMOE_INVALID_ARGUMENT, message);
}

/* One token of width 1, one expert: y = silu(2 * 1) * (2 * 3) * 0.5, with bfloat16 between the steps. */
static uint16_t x[1] = {0x4000};               /* 2 */
static uint16_t gate_up[2] = {0x3f80, 0x4040}; /* 1, 3 */
static uint16_t down[1] = {0x3f00};            /* 0.5 */
static int32_t ids[1] = {0};
static float weights[1] = {1.0f};
static uint16_t y[1];
static int32_t nums[1];
static int8_t mask[1] = {0};

/* A buffer of this process alone; null where the library refuses it. */
static megamoe_buffer* make_buffer(const megamoe_buffer_config* config,
                                   const megamoe_buffer_options* options) {
  megamoe_group* group = NULL;
  megamoe_buffer* buffer = NULL;
  CHECK(megamoe_group_self(&group) == 0);
  CHECK(megamoe_buffer_create(group, config, options, &buffer) == 0);
  megamoe_group_release(group);
  return buffer;
}

/* Weights of one stacked tensor. */
static void stacked_weights(megamoe_linear_weights* weights, const megamoe_tensor* tensor) {
  megamoe_init_linear_weights(weights, sizeof *weights);
  weights->weight = tensor;
  weights->weight_count = 1;
}

static void fill_weights(megamoe_linear_weights* weights1, megamoe_linear_weights* weights2,
                         megamoe_tensor tensors[2]) {
  const int64_t shape1[3] = {1, 1, 2}, shape2[3] = {1, 1, 1};
  tensors[0] = megamoe_row_major(gate_up, megamoe_dtype("bfloat16"), 3, shape1);
  tensors[1] = megamoe_row_major(down, megamoe_dtype("bfloat16"), 3, shape2);
  stacked_weights(weights1, &tensors[0]);
  stacked_weights(weights2, &tensors[1]);
}

static void fill_config(megamoe_buffer_config* config) {
  megamoe_init_buffer_config(config, sizeof *config);
  config->num_experts = 1;
  config->num_max_tokens_per_rank = 4;
  config->num_topk = 1;
  config->hidden = 1;
  config->intermediate_hidden = 1;
}

static void fill_call(megamoe_call* call, const megamoe_tensor* tokens, const megamoe_tensor* topk_ids,
                      const megamoe_tensor* topk_weights, const megamoe_tensor* outputs) {
  megamoe_init_call(call, sizeof *call);
  call->x = tokens;
  call->topk_ids = topk_ids;
  call->topk_weights = topk_weights;
  call->y = outputs;
}

static megamoe_tensor with_stride(megamoe_tensor tensor, int dim, int64_t stride) {
  tensor.strides[dim] = stride;
  return tensor;
}

/* Runs with `wrong` in place of one tensor of `call`, to which `tensor` points. */
static int32_t run_with(megamoe_op* op, const megamoe_call* call, const megamoe_tensor** tensor,
                        megamoe_tensor wrong) {
  const megamoe_tensor* const right = *tensor;
  int32_t code;
  *tensor = &wrong;
  code = megamoe_op_run(op, call);
  *tensor = right;
  return code;
}

/* Calls that are refused leave `y` as it was and the op usable. */
static void check_refused_calls(megamoe_buffer* buffer, megamoe_op* op, megamoe_call* call,
                                const megamoe_tensor* x_active_mask) {
  const uint16_t before = y[0];
  ids[0] = 7;
  CHECK(megamoe_op_run(op, call) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(), "topk_ids[0][0] = 7") != NULL);
  CHECK(y[0] == before);
  /* But not where the token takes no part. */
  call->x_active_mask = x_active_mask;
  CHECK(megamoe_op_run(op, call) == 0);
  CHECK(y[0] == 0 && nums[0] == 0);
  call->x_active_mask = NULL;
  ids[0] = 0;
  CHECK(megamoe_op_run(op, call) == 0);
  CHECK(invalid(megamoe_op_run(op, NULL), "call = null: expected a struct"));
  CHECK(megamoe_op_run(op, call) == 0);
  CHECK(megamoe_buffer_refuse_call(buffer, MEGAMOE_INVALID_ARGUMENT, "not today") ==
        MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(), "not today") != NULL);
  CHECK(
      invalid(megamoe_buffer_refuse_call(buffer, 99, NULL), "code = 99: expected that of an error, 1 to 11"));
  CHECK(
      invalid(megamoe_buffer_refuse_call(buffer, 0, "well"), "code = 0: expected that of an error, 1 to 11"));
  CHECK(invalid(megamoe_buffer_refuse_call(buffer, MEGAMOE_INVALID_TYPE, NULL),
                "message = null: expected the text of the error"));
  CHECK(megamoe_op_run(op, call) == 0);
}

static void test_layer(int packed) {
  const int64_t shape[2] = {1, 1}, one[1] = {1};
  const megamoe_tensor tx = megamoe_row_major(x, megamoe_dtype("bfloat16"), 2, shape);
  const megamoe_tensor tids = megamoe_row_major(ids, megamoe_dtype("int32"), 2, shape);
  const megamoe_tensor tweights = megamoe_row_major(weights, megamoe_dtype("float32"), 2, shape);
  const megamoe_tensor ty = megamoe_row_major(y, megamoe_dtype("bfloat16"), 2, shape);
  const megamoe_tensor tnums = megamoe_row_major(nums, megamoe_dtype("int32"), 1, one);
  const megamoe_tensor tmask = megamoe_row_major(mask, megamoe_dtype("int8"), 1, one);
  megamoe_tensor tensors[2];
  megamoe_linear_weights weights1, weights2;
  megamoe_buffer_config config;
  megamoe_buffer_options options;
  megamoe_layer layer;
  megamoe_call call;
  megamoe_buffer* buffer = NULL;
  megamoe_packed_weights *packed1 = NULL, *packed2 = NULL;
  megamoe_op* op = NULL;
  int64_t bytes = 0;

  fill_weights(&weights1, &weights2, tensors);
  fill_config(&config);
  megamoe_init_buffer_options(&options, sizeof options);
  options.threads = 1;
  CHECK(megamoe_ccl_buffer_size(1, &config, &bytes) == 0 && bytes > 0);
  buffer = make_buffer(&config, &options);
  CHECK(megamoe_buffer_experts_per_rank(buffer) == 1);

  megamoe_init_layer(&layer, sizeof layer);
  if (packed) {
    CHECK(megamoe_pack_linear1(&weights1, 1, 1, &packed1) == 0);
    CHECK(megamoe_pack_linear2(&weights2, 1, &packed2) == 0);
    CHECK(megamoe_packed_weights_bytes(packed1) > 0);
    layer.packed1 = packed1;
    layer.packed2 = packed2;
  } else {
    layer.weight1 = &weights1;
    layer.weight2 = &weights2;
  }
  layer.tuning_file = "/nowhere/tuning.json";
  CHECK(megamoe_op_create(buffer, &layer, &op) != 0);
  CHECK(strstr(megamoe_last_error(), "tuning file \"/nowhere/tuning.json\" cannot be opened") != NULL);
  layer.tuning_file = NULL;
  CHECK(megamoe_op_create(buffer, &layer, &op) == 0);
  CHECK(strstr(megamoe_op_describe(op), "block sizes from: defaults") != NULL);
  megamoe_packed_weights_release(packed1);
  megamoe_packed_weights_release(packed2);
  CHECK(strstr(megamoe_op_describe(op), "scenario: A16W16") != NULL);

  fill_call(&call, &tx, &tids, &tweights, &ty);
  call.expert_token_nums = &tnums;
  y[0] = 0;
  nums[0] = -1;
  CHECK(megamoe_op_run(op, &call) == 0);
  CHECK(y[0] == 0x40a9); /* 5.28125 */
  CHECK(nums[0] == 1);

  check_refused_calls(buffer, op, &call, &tmask);
  CHECK(megamoe_buffer_destroy(buffer) == 0);
  CHECK(megamoe_op_run(op, &call) == MEGAMOE_CLOSED);
  megamoe_op_release(op);
  megamoe_buffer_release(buffer);
}

/* Two tokens and two experts of width 2, whose tensors lead outside memory in one way each. */
static void test_memory(void) {
  static uint16_t rows[4], outputs[4], both[2 * 2 * 2], second[2 * 1 * 2];
  static int32_t slots[2], counts[2];
  static float router[2];
  const int64_t matrix[2] = {2, 2}, column[2] = {2, 1}, vector[1] = {2};
  const int64_t shape1[3] = {2, 2, 2}, shape2[3] = {2, 1, 2};
  const int32_t bfloat16 = megamoe_dtype("bfloat16");
  const megamoe_tensor tx = megamoe_row_major(rows, bfloat16, 2, matrix);
  const megamoe_tensor tids = megamoe_row_major(slots, megamoe_dtype("int32"), 2, column);
  const megamoe_tensor trouter = megamoe_row_major(router, megamoe_dtype("float32"), 2, column);
  const megamoe_tensor ty = megamoe_row_major(outputs, bfloat16, 2, matrix);
  const megamoe_tensor tnums = megamoe_row_major(counts, megamoe_dtype("int32"), 1, vector);
  megamoe_tensor tensor1 = megamoe_row_major(both, bfloat16, 3, shape1);
  megamoe_tensor tensor2 = megamoe_row_major(second, bfloat16, 3, shape2);
  megamoe_tensor empty;
  megamoe_linear_weights weights1, weights2;
  megamoe_buffer_config config;
  megamoe_layer layer;
  megamoe_call call;
  megamoe_buffer* buffer = NULL;
  megamoe_op* op = NULL;

  fill_config(&config);
  config.num_experts = 2;
  config.hidden = 2;
  buffer = make_buffer(&config, NULL);
  stacked_weights(&weights1, &tensor1);
  stacked_weights(&weights2, &tensor2);
  weights1.weight_count = (int64_t)1 << 40;
  megamoe_init_layer(&layer, sizeof layer);
  layer.weight1 = &weights1;
  layer.weight2 = &weights2;
  CHECK(invalid(megamoe_op_create(buffer, &layer, &op),
                "weight1 has 1099511627776 tensors: expected one, or one per expert, of at most 2 experts"));
  weights1.weight_count = 1;
  tensor1.strides[1] = INT64_MAX / 2;
  CHECK(invalid(megamoe_op_create(buffer, &layer, &op),
                "weight1 has strides (4, 4611686018427387903, 1): expected elements within 2^56 bytes"));
  tensor1.strides[1] = 2;
  tensor2.strides[0] = INT64_MIN;
  CHECK(invalid(megamoe_op_create(buffer, &layer, &op),
                "weight2 has strides (-9223372036854775808, 2, 1): expected elements within 2^56 bytes"));
  tensor2.strides[0] = 2;
  CHECK(megamoe_op_create(buffer, &layer, &op) == 0);

  fill_call(&call, &tx, &tids, &trouter, &ty);
  call.expert_token_nums = &tnums;
  CHECK(invalid(run_with(op, &call, &call.x, with_stride(tx, 0, INT64_MAX)),
                "x has strides (9223372036854775807, 1): expected elements within 2^56 bytes"));
  CHECK(invalid(run_with(op, &call, &call.y, with_stride(ty, 1, INT64_MIN)),
                "y has strides (2, -9223372036854775808): expected elements within 2^56 bytes"));
  CHECK(invalid(run_with(op, &call, &call.topk_ids, with_stride(tids, 0, (int64_t)1 << 60)),
                "topk_ids has strides (1152921504606846976, 1): expected elements within 2^56 bytes"));
  CHECK(invalid(run_with(op, &call, &call.expert_token_nums, with_stride(tnums, 0, 0)),
                "expert_token_nums has strides (0,): expected elements that do not overlap"));
  CHECK(megamoe_op_run(op, &call) == 0);
  CHECK(counts[0] == 2 && counts[1] == 0);

  empty = megamoe_row_major(rows, bfloat16, 2, NULL);
  CHECK(empty.dims == 2 && empty.shape[0] == 0 && empty.shape[1] == 0);
  megamoe_op_release(op);
  megamoe_buffer_release(buffer);
}

/* Two outputs with gate and up columns in turn, biases, the same expert shared, float16 in and out. By hand:
 * gate 2, up 6 -> 10.5625; gate 0 + 2, up 0 + 1 -> 1.7578125; the row is 0.5 * 10.5625 + 1.7578125 + 0.25 ->
 * 7.28125, and y = 0.5 * 7.28125 + 7.28125. */
static void test_options(void) {
  static uint16_t in_turn[4] = {0x3f80, 0x4040, 0, 0}, second[2] = {0x3f00, 0x3f80};
  static float bias1[4] = {0, 0, 2, 1}, bias2[1] = {0.25f}, half_weight[1] = {0.5f};
  const int64_t shape[2] = {1, 1}, four[2] = {1, 4}, shape1[3] = {1, 1, 4}, shape2[3] = {1, 2, 1};
  const megamoe_tensor tx = megamoe_row_major(x, megamoe_dtype("float16"), 2, shape);
  const megamoe_tensor tids = megamoe_row_major(ids, megamoe_dtype("int32"), 2, shape);
  const megamoe_tensor tweights = megamoe_row_major(half_weight, megamoe_dtype("float32"), 2, shape);
  const megamoe_tensor ty = megamoe_row_major(y, megamoe_dtype("float16"), 2, shape);
  const megamoe_tensor tensor1 = megamoe_row_major(in_turn, megamoe_dtype("bfloat16"), 3, shape1);
  const megamoe_tensor tensor2 = megamoe_row_major(second, megamoe_dtype("bfloat16"), 3, shape2);
  const megamoe_tensor tbias1 = megamoe_row_major(bias1, megamoe_dtype("float32"), 2, four);
  const megamoe_tensor tbias2 = megamoe_row_major(bias2, megamoe_dtype("float32"), 2, shape);
  megamoe_linear_weights weights1, weights2;
  megamoe_buffer_config config;
  megamoe_layer layer;
  megamoe_call call;
  megamoe_buffer* buffer = NULL;
  megamoe_packed_weights *shared1 = NULL, *shared2 = NULL;
  megamoe_op* op = NULL;

  stacked_weights(&weights1, &tensor1);
  stacked_weights(&weights2, &tensor2);
  weights1.bias = &tbias1;
  weights2.bias = &tbias2;
  weights1.bias_count = weights2.bias_count = 1;
  weights1.interleave = 1;
  fill_config(&config);
  config.intermediate_hidden = 2;
  buffer = make_buffer(&config, NULL);
  CHECK(megamoe_pack_linear1(&weights1, 1, 1, &shared1) == 0);
  CHECK(megamoe_pack_linear2(&weights2, 1, &shared2) == 0);
  megamoe_init_layer(&layer, sizeof layer);
  layer.weight1 = &weights1;
  layer.weight2 = &weights2;
  layer.shared_packed1 = shared1;
  layer.shared_packed2 = shared2;
  layer.shared_expert_quant_out_dtype = 99;
  CHECK(invalid(megamoe_op_create(buffer, &layer, &op),
                "layer.shared_expert_quant_out_dtype = 99: expected a number from megamoe_dtype or -1"));
  layer.shared_expert_quant_out_dtype = -1;
  CHECK(megamoe_op_create(buffer, &layer, &op) == 0);
  fill_call(&call, &tx, &tids, &tweights, &ty);
  CHECK(megamoe_op_run(op, &call) == 0);
  CHECK(y[0] == 0x4976); /* 10.921875 */
  call.scales = &tweights;
  CHECK(invalid(megamoe_op_run(op, &call), "scales is given: expected none for x of type float16"));
  weights1.interleave = 3;
  megamoe_op_release(op);
  CHECK(invalid(megamoe_op_create(buffer, &layer, &op),
                "weight1_interleave = 3: expected 0 or a divisor of 2, the gate columns"));
  megamoe_packed_weights_release(shared1);
  megamoe_packed_weights_release(shared2);
  megamoe_buffer_release(buffer);
}

/* A struct of a caller that was built with an older or a newer header. */
static void test_versions(void) {
  struct {
    megamoe_buffer_config known;
    int64_t later;
  } newer;
  megamoe_buffer_config config;
  int64_t bytes = 0, same = 0;
  fill_config(&config);
  CHECK(megamoe_ccl_buffer_size(1, &config, &bytes) == 0);
  config.struct_size = offsetof(megamoe_buffer_config, combine_quant_mode);
  config.combine_quant_mode = 99; /* past what this caller says it has */
  CHECK(megamoe_ccl_buffer_size(1, &config, &same) == 0 && same == bytes);

  fill_config(&newer.known);
  newer.known.struct_size = sizeof newer;
  newer.later = 0;
  CHECK(megamoe_ccl_buffer_size(1, &newer.known, &same) == 0 && same == bytes);
  newer.later = 1;
  CHECK(megamoe_ccl_buffer_size(1, &newer.known, &same) == MEGAMOE_UNSUPPORTED);
  config.struct_size = 0;
  CHECK(megamoe_ccl_buffer_size(1, &config, &same) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(), "config.struct_size = 0: expected ") != NULL);
}

static void test_profile(void) {
  megamoe_buffer_config config;
  megamoe_group* group = NULL;
  megamoe_buffer* buffer = NULL;
  int64_t bytes = 0;
  fill_config(&config);
  CHECK(megamoe_ccl_buffer_size(1, &config, &bytes) == 0);
  CHECK(megamoe_group_self(&group) == 0);
  config.ccl_buffer_size = bytes - 1;
  CHECK(megamoe_buffer_create(group, &config, NULL, &buffer) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(), "ccl_buffer_size = ") != NULL);
  config.ccl_buffer_size = bytes;
  CHECK(megamoe_buffer_create(group, &config, NULL, &buffer) == 0);
  megamoe_buffer_release(buffer);
  megamoe_group_release(group);
  config.profile = "ascend_950";
  CHECK(megamoe_ccl_buffer_size(1, &config, &bytes) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(strstr(megamoe_last_error(),
               "ep_world_size = 1: expected a value in [2, 1024] (profile ascend_950)") != NULL);
  config.profile = "gpu";
  CHECK(megamoe_ccl_buffer_size(1, &config, &bytes) == MEGAMOE_INVALID_ARGUMENT);
}

static void test_errors(void) {
  megamoe_tensor tensors[2];
  megamoe_linear_weights weights1, weights2;
  megamoe_packed_weights* packed = NULL;
  megamoe_group* groups[2] = {NULL, NULL};
  int64_t bytes = 0;
  CHECK(invalid(megamoe_group_self(NULL), "group = null: expected a pointer"));
  CHECK(invalid(megamoe_ccl_buffer_size(1, NULL, &bytes), "config = null: expected a struct"));
  CHECK(invalid(megamoe_op_run(NULL, NULL), "op = null: expected a pointer"));
  fill_weights(&weights1, &weights2, tensors);
  tensors[0].dims = 9;
  CHECK(invalid(megamoe_pack_linear1(&weights1, 1, 1, &packed), "weight1.dims = 9: expected 0 to 5"));
  tensors[0].dims = 3;
  tensors[0].dtype = megamoe_dtype("no type");
  CHECK(invalid(megamoe_pack_linear1(&weights1, 1, 1, &packed),
                "weight1.dtype = -1: expected a number from megamoe_dtype"));
  tensors[0].dtype = megamoe_dtype("float32");
  CHECK(error_is(megamoe_pack_linear1(&weights1, 1, 1, &packed), MEGAMOE_INVALID_TYPE,
                 "weight1 has type float32: expected bfloat16, int8, int4, float8_e4m3fn, float8_e5m2, "
                 "float4_e2m1 or int32 (eight int4)"));
  tensors[0].dtype = megamoe_dtype("bfloat16");
  /* Lists beside the weights are bounded by the experts of those, before they are read. */
  weights1.bias = tensors;
  weights1.bias_count = 1000000;
  CHECK(invalid(megamoe_pack_linear1(&weights1, 1, 1, &packed),
                "weight1.bias has 1000000 tensors: expected one, or one per expert, of at most 1 experts"));
  CHECK(packed == NULL);
  CHECK(megamoe_group_local(2, groups) == 0);
  CHECK(groups[0] != NULL && groups[1] != NULL);
  megamoe_group_release(groups[0]);
  megamoe_group_release(groups[1]);
  CHECK(megamoe_group_local(0, groups) != 0);
  CHECK(strcmp(megamoe_code_name(MEGAMOE_INVALID_TYPE), "invalid type") == 0);
}

int main(void) {
  CHECK(megamoe_c_version() == MEGAMOE_C_VERSION);
  CHECK(strlen(megamoe_version()) > 0);
  test_layer(0);
  test_layer(1);
  test_memory();
  test_options();
  test_versions();
  test_profile();
  test_errors();
  printf("%d failures\n", failures);
  return failures != 0;
}
