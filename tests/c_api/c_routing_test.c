/* The routing operators and quantisation rules from plain C: values small enough to compute by hand,
 * versioned structs, errors with messages. */
#include "megamoe/c_routing.h"

#include <stdio.h>
#include <string.h>

static int failures = 0;

static void check(int good, int line, const char* what) {
  if (good) return;
  ++failures;
  printf("%d: %s; last error: %s\n", line, what, megamoe_last_error());
}
#define CHECK(condition) check((condition), __LINE__, #condition)

static int says(const char* message) {
  if (strstr(megamoe_last_error(), message) != NULL) return 1;
  printf("expected in the last error: %s\n", message);
  return 0;
}

static megamoe_tensor tensor(void* data, const char* dtype, int32_t dims, int64_t a, int64_t b) {
  int64_t shape[2];
  shape[0] = a;
  shape[1] = b;
  return megamoe_row_major(data, megamoe_dtype(dtype), dims, shape);
}

/* Two tokens of width 2 and slots {1, 0}, {1, -1}: rows token 0 (expert 0), token 0, token 1 (expert 1). */
static float x[4] = {1, -2, 30, 40};
static int32_t ids[4] = {1, 0, 1, -1};

static void test_init_routing(void) {
  const megamoe_tensor tx = tensor(x, "float32", 2, 2, 2), tids = tensor(ids, "int32", 2, 2, 2);
  const int64_t one_expert[2] = {1, 2};
  megamoe_init_routing_args args;
  megamoe_routing_options options;
  megamoe_tensor outputs[MEGAMOE_INIT_ROUTING_OUTPUTS];
  float rows[8];
  int8_t codes[8];
  int32_t index[4];
  int64_t counts[2];
  float scale[4];

  megamoe_init_init_routing_args(&args, sizeof args);
  megamoe_init_routing_options(&options, sizeof options);
  options.threads = 1;
  options.isa = "generic";
  args.x = &tx;
  args.expert_idx = &tids;
  args.expert_num = 2;
  args.expert_tokens_num_type = 1;
  args.expert_tokens_num_flag = 1;
  CHECK(megamoe_moe_init_routing_v3_outputs(&args, outputs, MEGAMOE_INIT_ROUTING_OUTPUTS) == 0);
  CHECK(outputs[0].dtype == megamoe_dtype("float32") && outputs[0].dims == 2 && outputs[0].shape[0] == 4 &&
        outputs[0].shape[1] == 2 && outputs[0].strides[0] == 2 && outputs[0].data == NULL);
  CHECK(outputs[2].dtype == megamoe_dtype("int64") && outputs[2].shape[0] == 2);
  CHECK(outputs[3].dtype == -1); /* no scales are asked for */
  memset(rows, 0xff, sizeof rows);
  outputs[0].data = rows;
  outputs[1].data = index;
  outputs[2].data = counts;
  CHECK(megamoe_moe_init_routing_v3(&args, outputs, MEGAMOE_INIT_ROUTING_OUTPUTS, &options) == 0);
  CHECK(rows[0] == 1 && rows[1] == -2 && rows[2] == 1 && rows[4] == 30 && rows[5] == 40 && rows[6] == 0);
  CHECK(index[0] == 1 && index[1] == 0 && index[2] == 2 && index[3] == -1);
  CHECK(counts[0] == 1 && counts[1] == 2);

  /* Quantised, one expert only. */
  args.active_expert_range = one_expert;
  args.quant_mode = 1;
  CHECK(megamoe_moe_init_routing_v3_outputs(&args, outputs, MEGAMOE_INIT_ROUTING_OUTPUTS) == 0);
  CHECK(outputs[0].dtype == megamoe_dtype("int8") && outputs[3].shape[0] == 4);
  outputs[0].data = codes;
  outputs[1].data = index;
  outputs[2].data = counts;
  outputs[3].data = scale;
  CHECK(megamoe_moe_init_routing_v3(&args, outputs, MEGAMOE_INIT_ROUTING_OUTPUTS, NULL) == 0);
  CHECK(codes[0] == 64 && codes[1] == -127 && codes[2] == 95 && codes[3] == 127 && codes[4] == 0);
  CHECK(scale[1] == 40.0f / 127 && scale[2] == 0 && counts[0] == 2);

  /* Errors name the argument, and nothing is written. */
  ids[0] = 2;
  counts[0] = -7;
  CHECK(megamoe_moe_init_routing_v3(&args, outputs, MEGAMOE_INIT_ROUTING_OUTPUTS, NULL) ==
        MEGAMOE_INVALID_ARGUMENT);
  CHECK(says("expert_idx[0][0] = 2"));
  CHECK(counts[0] == -7);
  ids[0] = 1;
  outputs[0].dtype = megamoe_dtype("int32");
  CHECK(megamoe_moe_init_routing_v3(&args, outputs, MEGAMOE_INIT_ROUTING_OUTPUTS, NULL) ==
        MEGAMOE_INVALID_TYPE);
  CHECK(says("expanded_x"));
  outputs[0].dtype = 99;
  CHECK(megamoe_moe_init_routing_v3(&args, outputs, MEGAMOE_INIT_ROUTING_OUTPUTS, NULL) ==
        MEGAMOE_INVALID_ARGUMENT);
  CHECK(says("expanded_x.dtype = 99: expected a number from megamoe_dtype"));
  CHECK(megamoe_moe_init_routing_v3(&args, outputs, 3, NULL) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(says("count = 3: expected 4 outputs"));
  CHECK(megamoe_moe_init_routing_v3_outputs(&args, NULL, 4) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(says("outputs = null"));
  CHECK(megamoe_moe_init_routing_v3_outputs(NULL, outputs, 4) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(says("args = null: expected a struct"));
  args.quant_mode = 10;
  CHECK(megamoe_moe_init_routing_v3_outputs(&args, outputs, 4) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(says("quant_mode = 10"));
  options.isa = "abacus";
  CHECK(megamoe_moe_init_routing_v3(&args, outputs, 4, &options) == MEGAMOE_INVALID_ARGUMENT);
  CHECK(says("abacus"));
}

/* A struct of a caller that was built with an older or a newer header. */
static void test_versions(void) {
  const megamoe_tensor tx = tensor(x, "float32", 2, 2, 2), tids = tensor(ids, "int32", 2, 2, 2);
  megamoe_tensor outputs[MEGAMOE_INIT_ROUTING_OUTPUTS];
  struct {
    megamoe_init_routing_args known;
    int64_t later;
  } newer;
  memset(&newer, 0x5a, sizeof newer);
  megamoe_init_init_routing_args(&newer.known, sizeof newer);
  CHECK(newer.later == 0 && newer.known.active_num == -1 && newer.known.quant_mode == -1);
  newer.known.x = &tx;
  newer.known.expert_idx = &tids;
  newer.known.expert_num = 2;
  CHECK(megamoe_moe_init_routing_v3_outputs(&newer.known, outputs, 4) == 0);
  newer.later = 1;
  CHECK(megamoe_moe_init_routing_v3_outputs(&newer.known, outputs, 4) == MEGAMOE_UNSUPPORTED);
  newer.known.struct_size = offsetof(megamoe_init_routing_args, mx_scale);
  newer.known.mx_scale = "past what this caller says it has";
  CHECK(megamoe_moe_init_routing_v3_outputs(&newer.known, outputs, 4) == 0);
}

static void test_permute(void) {
  int64_t indices[4] = {1, 0, 0, 1};
  float probs[4] = {0.5f, 2, 1, 0}, grad[4] = {1, 2, 3, 4};
  const megamoe_tensor tx = tensor(x, "float32", 2, 2, 2), tids = tensor(indices, "int64", 2, 2, 2);
  const megamoe_tensor tprobs = tensor(probs, "float32", 2, 2, 2), tgrad = tensor(grad, "float32", 2, 2, 2);
  megamoe_token_permute_args permute;
  megamoe_token_unpermute_args unpermute;
  megamoe_token_permute_grad_args permute_grad;
  megamoe_token_unpermute_grad_args unpermute_grad;
  megamoe_tensor rows[MEGAMOE_TOKEN_PERMUTE_OUTPUTS], out[MEGAMOE_TOKEN_UNPERMUTE_OUTPUTS];
  megamoe_tensor grads[MEGAMOE_TOKEN_UNPERMUTE_GRAD_OUTPUTS], back[MEGAMOE_TOKEN_PERMUTE_GRAD_OUTPUTS];
  float permuted[8], y[4], row_grad[8], probs_grad[4], tokens_grad[4];
  int32_t index[4];

  megamoe_init_token_permute_args(&permute, sizeof permute);
  permute.tokens = &tx;
  permute.indices = &tids;
  CHECK(megamoe_moe_token_permute_outputs(&permute, rows, 3) == 0);
  rows[0].data = permuted;
  rows[1].data = index;
  CHECK(rows[2].dims == 1 && rows[2].shape[0] == 0);
  CHECK(megamoe_moe_token_permute(&permute, rows, 3, NULL) == 0);
  CHECK(permuted[0] == 1 && permuted[2] == 30 && permuted[4] == 1 && permuted[6] == 30);
  CHECK(index[0] == 2 && index[1] == 0 && index[2] == 1 && index[3] == 3);
  permute.num_out_tokens = -1;
  CHECK(megamoe_moe_token_permute_outputs(&permute, rows, 3) == 0 && rows[0].shape[0] == 3);
  permute.padded_mode = 1;
  CHECK(megamoe_moe_token_permute_outputs(&permute, rows, 3) == MEGAMOE_INVALID_ARGUMENT &&
        says("padded_mode"));

  {
    const megamoe_tensor trows = tensor(permuted, "float32", 2, 4, 2),
                         tindex = tensor(index, "int32", 1, 4, 0);
    megamoe_init_token_unpermute_args(&unpermute, sizeof unpermute);
    unpermute.permuted_tokens = &trows;
    unpermute.sorted_indices = &tindex;
    unpermute.probs = &tprobs;
    CHECK(megamoe_moe_token_unpermute_outputs(&unpermute, out, 1) == 0);
    out[0].data = y;
    CHECK(megamoe_moe_token_unpermute(&unpermute, out, 1, NULL) == 0);
    CHECK(y[0] == 2.5f && y[1] == -5 && y[2] == 30 && y[3] == 40);

    megamoe_init_token_unpermute_grad_args(&unpermute_grad, sizeof unpermute_grad);
    unpermute_grad.permuted_tokens = &trows;
    unpermute_grad.grad_unpermuted_tokens = &tgrad;
    unpermute_grad.sorted_indices = &tindex;
    unpermute_grad.probs = &tprobs;
    CHECK(megamoe_moe_token_unpermute_grad_outputs(&unpermute_grad, grads, 2) == 0);
    grads[0].data = row_grad;
    grads[1].data = probs_grad;
    CHECK(megamoe_moe_token_unpermute_grad(&unpermute_grad, grads, 2, NULL) == 0);
    CHECK(row_grad[0] == 2 && row_grad[1] == 4 && row_grad[4] == 0.5f && row_grad[6] == 0);
    CHECK(probs_grad[0] == -3 && probs_grad[3] == 250);
    unpermute_grad.probs = NULL;
    CHECK(megamoe_moe_token_unpermute_grad_outputs(&unpermute_grad, grads, 2) == MEGAMOE_INVALID_ARGUMENT);

    megamoe_init_token_permute_grad_args(&permute_grad, sizeof permute_grad);
    CHECK(permute_grad.num_topk == 1);
    permute_grad.num_topk = 2;
    permute_grad.grad_permuted_tokens = &trows;
    permute_grad.sorted_indices = &tindex;
    CHECK(megamoe_moe_token_permute_grad_outputs(&permute_grad, back, 1) == 0);
    back[0].data = tokens_grad;
    CHECK(megamoe_moe_token_permute_grad(&permute_grad, back, 1, NULL) == 0);
    CHECK(tokens_grad[0] == 2 && tokens_grad[1] == -4 && tokens_grad[2] == 60 && tokens_grad[3] == 80);
  }
}

static void test_gating(void) {
  float logits[3] = {0, 5, 1}, weights[2];
  int32_t chosen[2];
  const megamoe_tensor tlogits = tensor(logits, "float32", 2, 1, 3);
  megamoe_gating_top_k_args args;
  megamoe_tensor outputs[MEGAMOE_GATING_TOP_K_OUTPUTS];
  megamoe_init_gating_top_k_args(&args, sizeof args);
  CHECK(args.n_group == 1 && args.topk_group == 1 && args.routed_scaling_factor == 1);
  args.logits = &tlogits;
  args.k = 2;
  args.scoring = "sigmoid";
  args.renormalize = 1;
  CHECK(megamoe_moe_gating_top_k_outputs(&args, outputs, 2) == 0);
  outputs[0].data = weights;
  outputs[1].data = chosen;
  CHECK(megamoe_moe_gating_top_k(&args, outputs, 2, NULL) == 0);
  CHECK(chosen[0] == 1 && chosen[1] == 2);
  CHECK(weights[0] > weights[1] && weights[0] + weights[1] > 0.999f && weights[0] + weights[1] < 1.001f);
  args.scoring = "softmax";
  args.k = 1;
  args.n_group = 3;
  args.group_score = "max";
  CHECK(megamoe_moe_gating_top_k_outputs(&args, outputs, 2) == 0);
  outputs[0].data = weights;
  outputs[1].data = chosen;
  CHECK(megamoe_moe_gating_top_k(&args, outputs, 2, NULL) == 0 && chosen[0] == 1);
  args.group_score = "mean";
  CHECK(megamoe_moe_gating_top_k_outputs(&args, outputs, 2) == MEGAMOE_INVALID_ARGUMENT &&
        says("group_score = mean"));
  args.scoring = "relu";
  CHECK(megamoe_moe_gating_top_k_outputs(&args, outputs, 2) == MEGAMOE_INVALID_ARGUMENT &&
        says("scoring = relu"));
}

static void test_quantise(void) {
  float rows[2] = {127, -1.5f}, scale[1], back[2];
  int8_t codes[2];
  const megamoe_tensor tx = tensor(rows, "float32", 2, 1, 2), tcodes = tensor(codes, "int8", 2, 1, 2);
  const megamoe_tensor tscale = tensor(scale, "float32", 1, 1, 0), ty = tensor(back, "float32", 2, 1, 2);
  megamoe_quant_rule rule;
  megamoe_quant_args args;
  int32_t i, found = 0;
  rule.struct_size = sizeof rule;
  for (i = 0; i < megamoe_quant_rule_count(); ++i) {
    CHECK(megamoe_quant_rule_info(i, &rule) == 0);
    if (strcmp(rule.name, "mx_floor_e2m1") != 0) continue;
    found = 1;
    CHECK(rule.codes == megamoe_dtype("float4_e2m1") && rule.scales == megamoe_dtype("float8_e8m0"));
    CHECK(rule.group == 32 && !rule.takes_smooth && !rule.takes_scale && !rule.takes_offset);
  }
  CHECK(found);
  CHECK(megamoe_quant_rule_info(-1, &rule) == MEGAMOE_INVALID_ARGUMENT && says("index = -1: expected 0 to"));

  CHECK(megamoe_quantise("int8_per_token", &tx, &tcodes, &tscale, NULL) == 0);
  CHECK(codes[0] == 127 && codes[1] == -2 && scale[0] == 1);
  CHECK(megamoe_dequantise("int8_per_token", &tcodes, &tscale, &ty, NULL) == 0);
  CHECK(back[0] == 127 && back[1] == -2);

  megamoe_init_quant_args(&args, sizeof args);
  CHECK(megamoe_quantise("int8_static", &tx, &tcodes, NULL, &args) == MEGAMOE_INVALID_ARGUMENT &&
        says("scale"));
  args.has = MEGAMOE_HAS_SCALE | MEGAMOE_HAS_OFFSET;
  args.scale = 2;
  args.offset = 1;
  args.isa = "generic";
  CHECK(megamoe_quantise("int8_static", &tx, &tcodes, NULL, &args) == 0);
  CHECK(codes[0] == 127 && codes[1] == -2);
  CHECK(megamoe_quantise("int9", &tx, &tcodes, NULL, NULL) == MEGAMOE_INVALID_ARGUMENT && says("int9"));
  CHECK(megamoe_quantise(NULL, &tx, &tcodes, NULL, NULL) == MEGAMOE_INVALID_ARGUMENT && says("rule = null"));
  CHECK(megamoe_quantise("int8_per_token", NULL, &tcodes, NULL, NULL) == MEGAMOE_INVALID_ARGUMENT &&
        says("x = null"));
}

static void test_formats(void) {
  float values[2] = {1000, 0.5f};
  uint8_t codes[2];
  uint16_t matrix[3] = {1, 2, 3}, stored[16 * 16], plain[3] = {0, 0, 0};
  int32_t words[2] = {0x76543210, -1};
  int64_t shape[4] = {0, 0, 0, 0};
  const megamoe_tensor tx = tensor(values, "float32", 1, 2, 0), ty = tensor(codes, "float8_e4m3fn", 1, 2, 0);
  megamoe_tensor from = tensor(matrix, "bfloat16", 2, 1, 3), to = tensor(stored, "bfloat16", 2, 1, 3);
  const megamoe_tensor again = tensor(plain, "bfloat16", 2, 1, 3), twords = tensor(words, "int32", 2, 1, 2);
  megamoe_tensor nibbles, back;
  CHECK(megamoe_cast(&tx, &ty, 1) == 0 && codes[0] == 0x7e && codes[1] == 0x30);
  CHECK(megamoe_cast(&tx, &ty, 0) == 0 && codes[0] == 0x7f);
  CHECK(megamoe_cast(&tx, NULL, 0) == MEGAMOE_INVALID_ARGUMENT && says("y = null"));

  CHECK(megamoe_fractal_storage_shape(from.dtype, MEGAMOE_LAYOUT_FRACTAL_NZ, 1, 3, shape) == 0);
  CHECK(shape[0] == 1 && shape[1] == 1 && shape[2] == 16 && shape[3] == 16);
  CHECK(megamoe_fractal_storage_shape(from.dtype, 7, 1, 3, shape) == MEGAMOE_INVALID_ARGUMENT);
  to.layout = MEGAMOE_LAYOUT_FRACTAL_NZ;
  memset(stored, 0xff, sizeof stored);
  CHECK(megamoe_convert_layout(&from, &to) == 0);
  CHECK(stored[0] == 1 && stored[2] == 3 && stored[3] == 0 && stored[255] == 0);
  CHECK(megamoe_convert_layout(&to, &again) == 0 && plain[0] == 1 && plain[2] == 3);

  CHECK(megamoe_int4_view(&twords, &nibbles) == 0);
  CHECK(nibbles.dtype == megamoe_dtype("int4") && nibbles.shape[1] == 16 && nibbles.data == words);
  CHECK(megamoe_int32_view(&nibbles, &back) == 0 && back.shape[1] == 2 && back.dtype == twords.dtype);
  CHECK(megamoe_int4_view(&nibbles, &back) == MEGAMOE_INVALID_TYPE && says("words has type int4"));
  CHECK(megamoe_int32_view(&nibbles, NULL) == MEGAMOE_INVALID_ARGUMENT && says("words = null"));
}

int main(void) {
  test_init_routing();
  test_versions();
  test_permute();
  test_gating();
  test_quantise();
  test_formats();
  printf("%d failures\n", failures);
  return failures != 0;
}
