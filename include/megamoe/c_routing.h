/* The routing operators, quantisation rules, casts and layouts for C. The rules of c.h hold: every function
 * returns a code, megamoe_last_error() has its message, structs carry their size. What the
 * operators compute and what their arguments mean is in megamoe/routing.h, megamoe/quantise.h and docs/. */
#pragma once

#include "megamoe/c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every operator comes as a pair. <operator>_outputs checks the arguments without touching memory and
 * describes the outputs: contiguous, data null; an output that the arguments do not ask for has dtype -1.
 * Give each its memory, then call the operator, which writes all elements of all outputs, or nothing when it
 * fails. Outputs stand in an array in the order that is written beside each operator; `count` is its length
 * and must be the number of them. Optional inputs may be null. Inputs may have any strides. */

/* How a routing operator runs; results do not depend on it. */
typedef struct megamoe_routing_options {
  size_t struct_size;
  int32_t threads; /* most threads to use; 0 = physical cores */
  const char* isa; /* null = default */
} megamoe_routing_options;
MEGAMOE_API void megamoe_init_routing_options(megamoe_routing_options* options, size_t struct_size);

typedef struct megamoe_init_routing_args {
  size_t struct_size;
  const megamoe_tensor* x;          /* (N, H) */
  const megamoe_tensor* expert_idx; /* (N, K) int32 or int64 */
  const megamoe_tensor* scale;      /* optional, by quant_mode */
  const megamoe_tensor* offset;     /* optional, by quant_mode */
  int64_t active_num;
  int64_t expert_capacity;
  int64_t expert_num;
  int64_t drop_pad_mode;
  int64_t expert_tokens_num_type;
  int32_t expert_tokens_num_flag;
  int64_t quant_mode;
  const int64_t* active_expert_range; /* two numbers, null = all experts */
  int64_t row_idx_type;
  const char* mx_scale; /* "round_up" or "floor", null = round_up */
} megamoe_init_routing_args;
MEGAMOE_API void megamoe_init_init_routing_args(megamoe_init_routing_args* args, size_t struct_size);

/* expanded_x, expanded_row_idx, expert_tokens_count_or_cumsum, expanded_scale */
#define MEGAMOE_INIT_ROUTING_OUTPUTS 4
MEGAMOE_API int32_t megamoe_moe_init_routing_v3_outputs(const megamoe_init_routing_args* args,
                                                        megamoe_tensor* outputs, int32_t count);
/* `options` may be null. */
MEGAMOE_API int32_t megamoe_moe_init_routing_v3(const megamoe_init_routing_args* args,
                                                const megamoe_tensor* outputs, int32_t count,
                                                const megamoe_routing_options* options);

typedef struct megamoe_token_permute_args {
  size_t struct_size;
  const megamoe_tensor* tokens;  /* (N, H) */
  const megamoe_tensor* indices; /* (N,) or (N, K) int32 or int64 */
  int64_t num_out_tokens;        /* 0 = all */
  int32_t padded_mode;           /* 0 */
  int64_t quant_mode;
  const char* mx_scale;
} megamoe_token_permute_args;
MEGAMOE_API void megamoe_init_token_permute_args(megamoe_token_permute_args* args, size_t struct_size);

/* permuted_tokens, sorted_indices, expanded_scale */
#define MEGAMOE_TOKEN_PERMUTE_OUTPUTS 3
MEGAMOE_API int32_t megamoe_moe_token_permute_outputs(const megamoe_token_permute_args* args,
                                                      megamoe_tensor* outputs, int32_t count);
MEGAMOE_API int32_t megamoe_moe_token_permute(const megamoe_token_permute_args* args,
                                              const megamoe_tensor* outputs, int32_t count,
                                              const megamoe_routing_options* options);

typedef struct megamoe_token_permute_grad_args {
  size_t struct_size;
  const megamoe_tensor* grad_permuted_tokens; /* (M, H) */
  const megamoe_tensor* sorted_indices;       /* (F,) int32 or int64 */
  int64_t num_topk;
  int32_t padded_mode;
} megamoe_token_permute_grad_args;
MEGAMOE_API void megamoe_init_token_permute_grad_args(megamoe_token_permute_grad_args* args,
                                                      size_t struct_size);

/* grad_tokens */
#define MEGAMOE_TOKEN_PERMUTE_GRAD_OUTPUTS 1
MEGAMOE_API int32_t megamoe_moe_token_permute_grad_outputs(const megamoe_token_permute_grad_args* args,
                                                           megamoe_tensor* outputs, int32_t count);
MEGAMOE_API int32_t megamoe_moe_token_permute_grad(const megamoe_token_permute_grad_args* args,
                                                   const megamoe_tensor* outputs, int32_t count,
                                                   const megamoe_routing_options* options);

typedef struct megamoe_token_unpermute_args {
  size_t struct_size;
  const megamoe_tensor* permuted_tokens; /* (M, H) */
  const megamoe_tensor* sorted_indices;  /* (F,) int32 or int64 */
  const megamoe_tensor* probs;           /* optional (F / K, K) */
  int32_t padded_mode;
} megamoe_token_unpermute_args;
MEGAMOE_API void megamoe_init_token_unpermute_args(megamoe_token_unpermute_args* args, size_t struct_size);

/* out */
#define MEGAMOE_TOKEN_UNPERMUTE_OUTPUTS 1
MEGAMOE_API int32_t megamoe_moe_token_unpermute_outputs(const megamoe_token_unpermute_args* args,
                                                        megamoe_tensor* outputs, int32_t count);
MEGAMOE_API int32_t megamoe_moe_token_unpermute(const megamoe_token_unpermute_args* args,
                                                const megamoe_tensor* outputs, int32_t count,
                                                const megamoe_routing_options* options);

typedef struct megamoe_token_unpermute_grad_args {
  size_t struct_size;
  const megamoe_tensor* permuted_tokens;        /* (M, H) */
  const megamoe_tensor* grad_unpermuted_tokens; /* (F / K, H) */
  const megamoe_tensor* sorted_indices;         /* (F,) int32 or int64 */
  const megamoe_tensor* probs;                  /* optional (F / K, K) */
  int32_t padded_mode;
} megamoe_token_unpermute_grad_args;
MEGAMOE_API void megamoe_init_token_unpermute_grad_args(megamoe_token_unpermute_grad_args* args,
                                                        size_t struct_size);

/* permuted_grad, probs_grad */
#define MEGAMOE_TOKEN_UNPERMUTE_GRAD_OUTPUTS 2
MEGAMOE_API int32_t megamoe_moe_token_unpermute_grad_outputs(const megamoe_token_unpermute_grad_args* args,
                                                             megamoe_tensor* outputs, int32_t count);
MEGAMOE_API int32_t megamoe_moe_token_unpermute_grad(const megamoe_token_unpermute_grad_args* args,
                                                     const megamoe_tensor* outputs, int32_t count,
                                                     const megamoe_routing_options* options);

typedef struct megamoe_gating_top_k_args {
  size_t struct_size;
  const megamoe_tensor* logits; /* (T, E) */
  const megamoe_tensor* bias;   /* optional (E,) */
  int64_t k;
  const char* scoring; /* "softmax" or "sigmoid", null = softmax */
  int64_t n_group;
  int64_t topk_group;
  int32_t renormalize;
  double routed_scaling_factor;
  const char* group_score; /* "top2_sum" or "max", null = top2_sum */
} megamoe_gating_top_k_args;
MEGAMOE_API void megamoe_init_gating_top_k_args(megamoe_gating_top_k_args* args, size_t struct_size);

/* weights, ids */
#define MEGAMOE_GATING_TOP_K_OUTPUTS 2
MEGAMOE_API int32_t megamoe_moe_gating_top_k_outputs(const megamoe_gating_top_k_args* args,
                                                     megamoe_tensor* outputs, int32_t count);
MEGAMOE_API int32_t megamoe_moe_gating_top_k(const megamoe_gating_top_k_args* args,
                                             const megamoe_tensor* outputs, int32_t count,
                                             const megamoe_routing_options* options);

/* A quantisation rule. */
typedef struct megamoe_quant_rule {
  size_t struct_size;
  const char* name; /* valid for ever */
  int32_t codes;    /* type of the codes */
  int32_t scales;   /* type of the scales, -1 = the rule has none */
  int64_t group;    /* columns that share a scale, 0 = the whole row */
  int32_t takes_smooth;
  int32_t takes_scale;
  int32_t takes_offset;
} megamoe_quant_rule;
MEGAMOE_API int32_t megamoe_quant_rule_count(void);
/* Rule number `index`, from 0; set struct_size first. */
MEGAMOE_API int32_t megamoe_quant_rule_info(int32_t index, megamoe_quant_rule* rule);

/* What some rules take besides the rows. */
#define MEGAMOE_HAS_SCALE 1u
#define MEGAMOE_HAS_OFFSET 2u
typedef struct megamoe_quant_args {
  size_t struct_size;
  const megamoe_tensor* smooth; /* optional (H,) or (1, H) float32 */
  uint32_t has;                 /* which of the next two are given */
  float scale;
  float offset;
  const char* isa; /* null = default */
} megamoe_quant_args;
MEGAMOE_API void megamoe_init_quant_args(megamoe_quant_args* args, size_t struct_size);

/* Rows x (T, H) to codes and scales and back. `scales` is null for rules without; `args` may be null. */
MEGAMOE_API int32_t megamoe_quantise(const char* rule, const megamoe_tensor* x, const megamoe_tensor* codes,
                                     const megamoe_tensor* scales, const megamoe_quant_args* args);
MEGAMOE_API int32_t megamoe_dequantise(const char* rule, const megamoe_tensor* codes,
                                       const megamoe_tensor* scales, const megamoe_tensor* y,
                                       const megamoe_quant_args* args);
/* Every element of x to the type of y. */
MEGAMOE_API int32_t megamoe_cast(const megamoe_tensor* x, const megamoe_tensor* y, int32_t saturate);
/* x in its layout to the layout of y; both have the same type and logical shape. */
MEGAMOE_API int32_t megamoe_convert_layout(const megamoe_tensor* x, const megamoe_tensor* y);
/* Elements of memory that a matrix takes in a fractal layout: column tiles, row tiles, 16, C0. */
MEGAMOE_API int32_t megamoe_fractal_storage_shape(int32_t dtype, int32_t layout, int64_t rows,
                                                  int64_t columns, int64_t shape[4]);
/* int32 words as int4 elements, the last dimension times 8, and back: the same memory. */
MEGAMOE_API int32_t megamoe_int4_view(const megamoe_tensor* words, megamoe_tensor* nibbles);
MEGAMOE_API int32_t megamoe_int32_view(const megamoe_tensor* nibbles, megamoe_tensor* words);

#ifdef __cplusplus
}
#endif
