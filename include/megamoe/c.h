/* The C interface: opaque handles, versioned structs, error codes; no exception crosses it.
 *
 * Every function that can fail returns one of the codes below, 0 for success; megamoe_last_error() then gives
 * the message. Structs carry their size, so that a library may know more
 * fields than its caller: fill one with its megamoe_init_... function, then set fields. Handles are released
 * once; a released handle must not be used. Tensors stay the caller's memory. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "megamoe/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function or a struct changes in a way that old callers would notice. */
#define MEGAMOE_C_VERSION 1
MEGAMOE_API int32_t megamoe_c_version(void);
/* "0.1.0" */
MEGAMOE_API const char* megamoe_version(void);

/* Codes of functions, the same as megamoe::Code: docs/errors.md says what each means. */
#define MEGAMOE_OK 0
#define MEGAMOE_INVALID_ARGUMENT 1
#define MEGAMOE_INVALID_TYPE 2
#define MEGAMOE_UNSUPPORTED 3
#define MEGAMOE_CAPACITY 4
#define MEGAMOE_SETTINGS_DIFFER 5
#define MEGAMOE_PEER_FAILED 6
#define MEGAMOE_TIMED_OUT 7
#define MEGAMOE_OUT_OF_MEMORY 8
#define MEGAMOE_SYSTEM 9
#define MEGAMOE_CLOSED 10
#define MEGAMOE_DATA_LOSS 11

/* Message of the last failure on this thread, "" before the first. Valid until the next failure on this
 * thread. */
MEGAMOE_API const char* megamoe_last_error(void);
/* Name of a code as it stands in messages: "invalid argument". */
MEGAMOE_API const char* megamoe_code_name(int32_t code);

#define MEGAMOE_MAX_DIMS 5
#define MEGAMOE_LAYOUT_ND 0
#define MEGAMOE_LAYOUT_FRACTAL_NZ 1
#define MEGAMOE_LAYOUT_FRACTAL_NZ_C0_32 2

/* Number of a type by its name ("bfloat16", "int8", "float32", "uint64", ...); -1 for an unknown name. */
MEGAMOE_API int32_t megamoe_dtype(const char* name);

/* A view of the caller's memory. Strides are in elements and count for MEGAMOE_LAYOUT_ND only. */
typedef struct megamoe_tensor {
  void* data; /* inputs are only read */
  int32_t dtype;
  int32_t layout;
  int32_t dims;
  int64_t shape[MEGAMOE_MAX_DIMS];
  int64_t strides[MEGAMOE_MAX_DIMS];
} megamoe_tensor;
/* A row-major tensor of `dims` sizes; all 0 where `shape` is null. */
MEGAMOE_API megamoe_tensor megamoe_row_major(void* data, int32_t dtype, int32_t dims, const int64_t* shape);

typedef struct megamoe_group megamoe_group;
typedef struct megamoe_buffer megamoe_buffer;
typedef struct megamoe_packed_weights megamoe_packed_weights;
typedef struct megamoe_op megamoe_op;

/* Groups: one rank; `size` ranks in this process, each handle for its own thread; one process of `size` on
 * this host. */
MEGAMOE_API int32_t megamoe_group_self(megamoe_group** group);
MEGAMOE_API int32_t megamoe_group_local(int32_t size, megamoe_group** groups);
MEGAMOE_API int32_t megamoe_group_shm(const char* key, int32_t rank, int32_t size, megamoe_group** group);
MEGAMOE_API void megamoe_group_release(megamoe_group* group);

/* What all ranks agree on. Fields as in megamoe::BufferConfig; null texts mean the default. */
typedef struct megamoe_buffer_config {
  size_t struct_size;
  int64_t num_experts;
  int64_t num_max_tokens_per_rank;
  int64_t num_topk;
  int64_t hidden;
  int64_t intermediate_hidden;
  int64_t max_recv_token_num;
  int32_t dispatch_quant_mode;
  int32_t dispatch_quant_out_dtype; /* a type, -1 undefined */
  int32_t combine_quant_mode;
  int32_t topk_weights_type;
  int32_t topo_type;
  int32_t rank_num_per_server;
  int32_t combine_comm_mode;
  const char* comm_alg;
  const char* profile;     /* "cpu", "ascend_a2_a3", "ascend_950", "mega_moe_v1" */
  int64_t ccl_buffer_size; /* most bytes of symmetric memory of one rank; 0 = as many as needed */
} megamoe_buffer_config;
MEGAMOE_API void megamoe_init_buffer_config(megamoe_buffer_config* config, size_t struct_size);

/* What each rank chooses for itself. */
typedef struct megamoe_buffer_options {
  size_t struct_size;
  int32_t threads;     /* 0 = default */
  const char* isa;     /* null = default */
  int64_t deadline_ms; /* longest wait for other ranks */
} megamoe_buffer_options;
MEGAMOE_API void megamoe_init_buffer_options(megamoe_buffer_options* options, size_t struct_size);

/* Collective over the ranks of the group. `options` may be null. */
MEGAMOE_API int32_t megamoe_buffer_create(const megamoe_group* group, const megamoe_buffer_config* config,
                                          const megamoe_buffer_options* options, megamoe_buffer** buffer);
/* Leaves the group; later calls fail. Local, never waits for other ranks; a call of another thread ends. */
MEGAMOE_API int32_t megamoe_buffer_destroy(megamoe_buffer* buffer);
MEGAMOE_API void megamoe_buffer_release(megamoe_buffer* buffer);
MEGAMOE_API int64_t megamoe_buffer_experts_per_rank(const megamoe_buffer* buffer);
/* Takes part in the next call with an error, in place of megamoe_op_run; returns that error. `code` is one of
 * an error, `message` its text. */
MEGAMOE_API int32_t megamoe_buffer_refuse_call(megamoe_buffer* buffer, int32_t code, const char* message);
/* Bytes of symmetric memory one rank needs. */
MEGAMOE_API int32_t megamoe_ccl_buffer_size(int64_t ep_world_size, const megamoe_buffer_config* config,
                                            int64_t* bytes);

/* Raw weights of one linear layer: one stacked tensor, or one tensor per expert. */
typedef struct megamoe_linear_weights {
  size_t struct_size;
  const megamoe_tensor* weight;
  int64_t weight_count;
  const megamoe_tensor* scale;
  int64_t scale_count;
  const megamoe_tensor* up; /* separate up tensors of a gated Linear1 */
  int64_t up_count;
  int32_t k_last; /* not 0: the reduction dimension is the last one */
  const megamoe_tensor* bias;
  int64_t bias_count;
  int64_t interleave; /* gate columns before their up columns, 0 = all; as megamoe::LinearWeights */
  const megamoe_tensor* added_bias;
  int64_t added_bias_count;
  int64_t scale_group; /* k that share a scale, 0 = as the type has it; as megamoe::LinearWeights */
  const megamoe_tensor* zero;
  int64_t zero_count;
} megamoe_linear_weights;
MEGAMOE_API void megamoe_init_linear_weights(megamoe_linear_weights* weights, size_t struct_size);

/* `threads` 0 = all cores. */
MEGAMOE_API int32_t megamoe_pack_linear1(const megamoe_linear_weights* weights, int32_t gated,
                                         int32_t threads, megamoe_packed_weights** packed);
MEGAMOE_API int32_t megamoe_pack_linear2(const megamoe_linear_weights* weights, int32_t threads,
                                         megamoe_packed_weights** packed);
MEGAMOE_API int64_t megamoe_packed_weights_bytes(const megamoe_packed_weights* packed);
MEGAMOE_API void megamoe_packed_weights_release(megamoe_packed_weights* packed);

/* Which parameters of an activation are given. */
#define MEGAMOE_HAS_CLAMP 1u
#define MEGAMOE_HAS_ALPHA 2u
#define MEGAMOE_HAS_BETA 4u
#define MEGAMOE_HAS_LINEAR_BETA 8u

/* The layer of one rank: of each pair either packed or raw weights. Raw tensors must outlive the op. */
typedef struct megamoe_layer {
  size_t struct_size;
  const megamoe_packed_weights* packed1;
  const megamoe_packed_weights* packed2;
  const megamoe_linear_weights* weight1;
  const megamoe_linear_weights* weight2;
  const char* activation; /* null = swiglu */
  uint32_t activation_has;
  double clamp;
  double alpha;
  double beta;
  double linear_beta;
  /* Experts that every token of this rank passes through; all null = none. */
  const megamoe_packed_weights* shared_packed1;
  const megamoe_packed_weights* shared_packed2;
  const megamoe_linear_weights* shared_weight1;
  const megamoe_linear_weights* shared_weight2;
  int32_t shared_expert_quant_out_dtype; /* type of their token codes, -1 = as dispatch */
  const char* tuning_file; /* block sizes from a file of `megamoe tune`; null = those that fit the caches */
} megamoe_layer;
MEGAMOE_API void megamoe_init_layer(megamoe_layer* layer, size_t struct_size);

/* The op keeps the buffer and packed weights alive; their handles may be released before it. */
MEGAMOE_API int32_t megamoe_op_create(const megamoe_buffer* buffer, const megamoe_layer* layer,
                                      megamoe_op** op);
MEGAMOE_API void megamoe_op_release(megamoe_op* op);
/* The plan as text, valid as long as the op. */
MEGAMOE_API const char* megamoe_op_describe(const megamoe_op* op);

/* Tensors of one call; null for an optional one that is absent. */
typedef struct megamoe_call {
  size_t struct_size;
  const megamoe_tensor* x;
  const megamoe_tensor* topk_ids;
  const megamoe_tensor* topk_weights;
  const megamoe_tensor* x_active_mask;     /* optional; ids of tokens whose entry is 0 may be anything */
  const megamoe_tensor* y;                 /* written */
  const megamoe_tensor* expert_token_nums; /* optional, written */
  const megamoe_tensor* scales;            /* of x that comes as codes */
  int64_t global_bs; /* 0 = not stated; else most tokens of all ranks, the same on each, see mega_moe.h */
  int64_t ccl_buffer_size; /* 0 = not stated; else at least the bytes of the buffer, the same on each rank */
} megamoe_call;
MEGAMOE_API void megamoe_init_call(megamoe_call* call, size_t struct_size);

/* Collective over the ranks of the buffer. On an error of any rank's arguments nothing is written to
 * y or expert_token_nums; a rank that fails during the call may leave rows of y written. */
MEGAMOE_API int32_t megamoe_op_run(megamoe_op* op, const megamoe_call* call);

#ifdef __cplusplus
}
#endif
