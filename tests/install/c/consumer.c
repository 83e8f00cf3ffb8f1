/* A complete user of the C interface of the installed library: one layer on one rank. */
#include <megamoe/c.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { kExperts = 4, kTokens = 3, kTopk = 2, kHidden = 64, kInter = 32 };

static uint16_t x[kTokens * kHidden], y[kTokens * kHidden];
static uint16_t weight1[kExperts * kHidden * 2 * kInter], weight2[kExperts * kInter * kHidden];

/* A float32 cut to bfloat16. */
static uint16_t bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static void fill(uint16_t* values, size_t count, float value) {
  for (size_t i = 0; i < count; ++i) values[i] = bf16(value);
}

static megamoe_tensor tensor(void* data, const char* dtype, int32_t dims, int64_t a, int64_t b, int64_t c) {
  const int64_t shape[] = {a, b, c};
  return megamoe_row_major(data, megamoe_dtype(dtype), dims, shape);
}

static int run(megamoe_group* group) {
  megamoe_buffer_config config;
  megamoe_init_buffer_config(&config, sizeof config);
  config.num_experts = kExperts;
  config.num_max_tokens_per_rank = kTokens;
  config.num_topk = kTopk;
  config.hidden = kHidden;
  config.intermediate_hidden = kInter;
  megamoe_buffer* buffer = NULL;
  int32_t code = megamoe_buffer_create(group, &config, NULL, &buffer);
  if (code != MEGAMOE_OK) return code;

  const megamoe_tensor w1 = tensor(weight1, "bfloat16", 3, kExperts, kHidden, 2 * kInter);
  const megamoe_tensor w2 = tensor(weight2, "bfloat16", 3, kExperts, kInter, kHidden);
  megamoe_linear_weights linear1, linear2;
  megamoe_init_linear_weights(&linear1, sizeof linear1);
  megamoe_init_linear_weights(&linear2, sizeof linear2);
  linear1.weight = &w1;
  linear2.weight = &w2;
  linear1.weight_count = linear2.weight_count = 1;
  megamoe_layer layer;
  megamoe_init_layer(&layer, sizeof layer);
  layer.weight1 = &linear1;
  layer.weight2 = &linear2;
  megamoe_op* op = NULL;
  code = megamoe_op_create(buffer, &layer, &op);
  megamoe_buffer_release(buffer);
  if (code != MEGAMOE_OK) return code;

  int32_t ids[kTokens * kTopk] = {0, 1, 2, 3, 1, 0};
  float router[kTokens * kTopk] = {0.5f, 0.5f, 0.25f, 0.75f, 1.0f, 0.0f};
  const megamoe_tensor tokens = tensor(x, "bfloat16", 2, kTokens, kHidden, 0);
  const megamoe_tensor topk_ids = tensor(ids, "int32", 2, kTokens, kTopk, 0);
  const megamoe_tensor topk_weights = tensor(router, "float32", 2, kTokens, kTopk, 0);
  const megamoe_tensor results = tensor(y, "bfloat16", 2, kTokens, kHidden, 0);
  megamoe_call call;
  megamoe_init_call(&call, sizeof call);
  call.x = &tokens;
  call.topk_ids = &topk_ids;
  call.topk_weights = &topk_weights;
  call.y = &results;
  code = megamoe_op_run(op, &call);
  megamoe_op_release(op);
  return code;
}

int main(void) {
  /* Gate and up are 1 for every token and expert, so that y is swiglu(1, 1) = 1 / (1 + 1 / e) = 0.731. */
  fill(x, kTokens * kHidden, 1.0f);
  fill(weight1, kExperts * kHidden * 2 * kInter, 1.0f / kHidden);
  fill(weight2, kExperts * kInter * kHidden, 1.0f / kInter);
  megamoe_group* group = NULL;
  int32_t code = megamoe_group_self(&group);
  if (code == MEGAMOE_OK) code = run(group);
  if (code != MEGAMOE_OK) {
    printf("%s: %s\n", megamoe_code_name(code), megamoe_last_error());
    return 1;
  }
  megamoe_group_release(group);
  for (int i = 0; i < kTokens * kHidden; ++i) {
    if (y[i] >= bf16(0.727f) && y[i] <= bf16(0.735f)) continue;
    printf("y[%d] is not 0.731\n", i);
    return 1;
  }
  printf("megamoe %s from C: one layer as expected\n", megamoe_version());
  return 0;
}
