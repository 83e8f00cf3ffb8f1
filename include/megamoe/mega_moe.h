// The fused mixture-of-experts layer: dispatch, Linear1, activation, Linear2 and combine in one call.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megamoe/export.h"
#include "megamoe/group.h"
#include "megamoe/isa.h"
#include "megamoe/stages.h"
#include "megamoe/status.h"
#include "megamoe/tensor.h"
#include "megamoe/tuning.h"

namespace megamoe {

/// What all ranks of a buffer agree on. Names and defaults are those of get_symm_buffer_for_mega_moe.
struct BufferConfig {
  int64_t num_experts = 0;              ///< E, experts of all ranks together
  int64_t num_max_tokens_per_rank = 0;  ///< most tokens one rank passes in one call
  int64_t num_topk = 0;                 ///< K, slots per token
  int64_t hidden = 0;                   ///< H
  int64_t intermediate_hidden = 0;      ///< I, width after the gated activation
  /// Rows one rank can receive in one call; 0 = enough for any routing, num_max_tokens_per_rank * ranks * K.
  int64_t max_recv_token_num = 0;
  /// How tokens travel: 0 = as bfloat16, 2 = as int8 with one scale per token, 3 = as E4M3 with one scale per
  /// 128, 4 = as MX codes. 0 with an MX type: tokens are given as codes.
  int dispatch_quant_mode = 0;
  /// Type of the codes: int8, float8_e4m3fn, float8_e5m2 or float4_e2m1; undefined where the mode says it.
  DType dispatch_quant_out_dtype = DType::kUndefined;
  int combine_quant_mode = 0;   ///< how expert rows travel back: 0 = as bfloat16, 3 = as MX E5M2, 4 = as E4M3
  std::string comm_alg;         ///< reserved, ""
  int topk_weights_type = 0;    ///< router weights: 0 = when rows are combined, 1 = to the activated values
  int topo_type = 0;            ///< 0 = one memory domain; 1 and 2 = domains of rank_num_per_server ranks
  int rank_num_per_server = 2;  ///< ranks per domain of topo_type 1 and 2; divides the number of ranks
  /// 0 = every expert row travels back; 1 = the rows of one rank for a token are merged before (topo_type 0),
  /// 2 = those of one domain (topo_type 1 or 2); both with combine_quant_mode 0.
  int combine_comm_mode = 0;
  /// Whose limits hold: "cpu" (what the arithmetic needs), "ascend_a2_a3", "ascend_950", "mega_moe_v1".
  /// docs/limits.md lists them.
  std::string profile = "cpu";
  /// Bytes of symmetric memory that one rank may take; 0 = as many as needed. Fewer than needed are an error.
  int64_t ccl_buffer_size = 0;
};

/// What each rank chooses for itself.
struct BufferOptions {
  /// Threads of this rank; 0 = physical cores divided by the ranks of this host, at least 1.
  int threads = 0;
  std::optional<Isa> isa;                     ///< kernels of this level; absent = default_isa()
  std::chrono::milliseconds deadline{60000};  ///< longest time one wait for other ranks may take
  bool trace = false;                         ///< record when each thread did what, see CallTrace
  /// Keep for MegaMoe::stages() all rows of a call between the stages, which otherwise take over each other's
  /// memory, with Linear1, and with Linear2 where rows return as codes.
  bool keep_stages = false;
  /// Reserve no memory for rows, however large: layers can be planned on the buffer and describe themselves,
  /// calls are refused. Creation is not collective then.
  bool plan_only = false;
};

/// One span of one thread in the last call.
struct TraceSpan {
  enum class Stage : int32_t {
    kExchange,
    kDispatch,
    kPrepare,
    kLinear1,
    kRequantise,
    kLinear2,
    kCombine,
    kWait
  };
  Stage stage;
  int32_t thread;
  int64_t begin_ns;  ///< CLOCK_MONOTONIC
  int64_t end_ns;
};
MEGAMOE_API const char* trace_stage_name(TraceSpan::Stage stage);

class MegaMoe;

/// The memory through which the ranks of a group exchange rows, and this rank's threads. Creation is
/// collective; destruction is not. One call at a time; several layers may share one buffer.
class MEGAMOE_API SymmBuffer {
 public:
  /// Every rank of the group calls with the same settings, or every rank gets the same error.
  static Result<std::shared_ptr<SymmBuffer>> create(const Group& group, const BufferConfig& config,
                                                    const BufferOptions& options = {});
  /// Takes part in the creation of a buffer with an error found before it, so that every rank returns that
  /// error instead of waiting. Collective in place of create(); never ok.
  static Status refuse_creation(const Group& group, const Status& why, const BufferOptions& options = {});
  ~SymmBuffer();
  SymmBuffer(const SymmBuffer&) = delete;
  SymmBuffer& operator=(const SymmBuffer&) = delete;

  /// Leaves the group. Idempotent, local, never waits for other ranks; later calls return kClosed, and so
  /// does one that another thread is waiting in.
  void destroy();

  int rank() const;
  int world_size() const;
  int threads() const;
  Isa isa() const;
  const BufferConfig& config() const;
  int64_t experts_per_rank() const;
  /// Rows this rank can receive in one call.
  int64_t capacity() const;
  /// Bytes of symmetric memory of one rank, equal to mega_moe_ccl_buffer_size of the same settings.
  int64_t ccl_buffer_size() const;
  /// Takes part in the next call with an error found before it (a plan that could not be made), so that every
  /// rank returns that error instead of waiting. Collective in place of MegaMoe::run.
  Status refuse_call(const Status& why);
  /// Spans of the last call, empty without BufferOptions::trace.
  std::vector<TraceSpan> trace() const;

  class Impl;
  Impl& impl() const { return *impl_; }

 private:
  explicit SymmBuffer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Bytes of symmetric memory one rank needs (get_mega_moe_ccl_buffer_size), whatever config.ccl_buffer_size
/// is. Exact in 64 bits; overflow is an error.
MEGAMOE_API Result<int64_t> mega_moe_ccl_buffer_size(int64_t ep_world_size, const BufferConfig& config);

/// Raw weights of one linear layer of this rank's experts: one stacked tensor or one tensor per expert.
struct LinearWeights {
  /// (E_local, K, N) or E_local x (K, N); with k_last (E_local, N, K) or E_local x (N, K).
  std::vector<TensorView> weight;
  /// int8, int4: per output channel (E_local, N) or E_local x (N,), uint64 holding float32 bits or float32;
  /// FP8 and FP4: float8_e8m0 for every 32 k, (E_local, N, ceil(K / 64), 2); empty for bf16. With scale_group
  /// float32, float16 or bfloat16, see there.
  std::vector<TensorView> scale;
  /// k that share a scale; 0 = as above. 32, 64 or 128 with int4: scales (E_local, N, ceil(K / scale_group)).
  /// 128 with float8_e4m3fn: a scale for each block of 128 columns x 128 k, (E_local, ceil(N / 128), ceil(K /
  /// 128)); of separate gate and up tensors the blocks of each, gate first. Or one tensor per expert.
  int64_t scale_group = 0;
  /// int4 with scale_group: int8 zero points in [-120, 119], shaped as the scales; a weight is scale * (code
  /// - zero). Empty = 0.
  std::vector<TensorView> zero;
  /// float32 per output channel (E_local, N) or E_local x (N,), added after all scales; with int4 and a scale
  /// per channel added before the scale of the token, as the operator document has it. Usually empty.
  std::vector<TensorView> bias;
  /// The same, added after all scales where `bias` is not: with int4 and a scale per channel only.
  std::vector<TensorView> added_bias;
  bool k_last = false;  ///< the reduction dimension is the last one
  /// Gated Linear1 with separate gate and up tensors: then `weight` holds the gate columns (N = I) and `up`
  /// the up columns, in equal shapes. Otherwise empty. Scales cover both, gate first, either way.
  std::vector<TensorView> up;
  /// Order of the columns of a gated Linear1 in one tensor, and of its scales and biases
  /// (weight1_interleave): 0 = the I gate columns, then the I up columns; a divisor g of I = g gate columns
  /// and then the g up columns of the same outputs, in turn (1 as gpt-oss stores them).
  int64_t interleave = 0;
};

/// Weights in the layout the kernels read. Made once, used by any number of buffers and threads.
class MEGAMOE_API PackedWeights {
 public:
  /// Packs Linear1 (N = 2I: gate columns first, then up; `gated` false for gelu) or Linear2. `threads` 0 =
  /// all cores.
  static Result<std::shared_ptr<const PackedWeights>> pack_linear1(const LinearWeights& weights,
                                                                   bool gated = true, int threads = 0);
  static Result<std::shared_ptr<const PackedWeights>> pack_linear2(const LinearWeights& weights,
                                                                   int threads = 0);
  ~PackedWeights();

  DType dtype() const;
  int64_t experts() const;
  int64_t k() const;
  int64_t n() const;
  int64_t bytes() const;  ///< memory held
  /// "bfloat16", "int4 with scale_group 128": the element type, and the k that share a scale where that is a
  /// choice.
  std::string format() const;
  /// Names of the scenarios that multiply weights of this format.
  std::vector<std::string> scenarios() const;
  bool gated() const;  ///< of Linear1: outputs are gate and up columns
  /// As they were given: order of gate and up columns, k per scale, layout, reduction last, biases.
  int64_t interleave() const;
  int64_t scale_group() const;
  Layout layout() const;
  bool k_last() const;
  bool has_bias() const;
  bool has_added_bias() const;

  /// Whether Linear1 and Linear2 belong together: experts, sizes and formats. Errors name weight2.
  static Status check_pair(const PackedWeights& linear1, const PackedWeights& linear2);

  class Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit PackedWeights(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Activation between the two linear layers, by the name of the operator documents.
struct Activation {
  std::string name = "swiglu";        ///< swiglu, swiglustep, swigluoai, situglu, gelu
  std::optional<double> clamp;        ///< absent or 0 = not clamped; negative or NaN is an error
  std::optional<double> alpha;        ///< swigluoai, default 1.702
  std::optional<double> beta;         ///< swigluoai (default 1), situglu
  std::optional<double> linear_beta;  ///< situglu
};

/// The layer of one rank: weights packed or raw. Exactly one of each pair is set.
struct Layer {
  std::shared_ptr<const PackedWeights> packed1, packed2;
  LinearWeights weight1, weight2;  ///< raw weights stay the caller's and must outlive the MegaMoe
  Activation activation;
  /// Experts that every token of this rank passes through, unweighted; all empty = none.
  std::shared_ptr<const PackedWeights> shared_packed1, shared_packed2;
  LinearWeights shared_weight1, shared_weight2;
  /// Type of the token codes of the shared experts; undefined = as dispatch.
  DType shared_expert_quant_out_dtype = DType::kUndefined;
  std::shared_ptr<const Tuning> tuning;  ///< measured block sizes; null = those that fit the caches
};

/// Tensors of one call. T may differ between ranks and may be 0.
struct CallArgs {
  TensorView x;             ///< (T, H) bfloat16 or float16, or the codes of dispatch_quant_out_dtype
  TensorView scales;        ///< scales of x where x is given as codes; otherwise absent
  TensorView topk_ids;      ///< (T, K) int32 or int64, each in [0, E) or -1 = slot not used
  TensorView topk_weights;  ///< (T, K) float32 or bfloat16
  /// Optional (T,) int8 or bool as uint8: 0 = the token takes no part. Its row of y is 0; its ids, weights
  /// and row of x may be anything, such as the padding of a batch.
  TensorView x_active_mask;
  TensorRef y;                  ///< (T, H) bfloat16 or float16; may take the place of x, element by element
  TensorRef expert_token_nums;  ///< (E_local,) int32, optional
  /// Most tokens of all ranks together, as the first version of the operator states them: 0 = not stated, or
  /// a multiple of the ranks, at least T times the ranks, and the same on every rank.
  int64_t global_bs = 0;
  /// Bytes of the buffer, as the first version states them: 0 = not stated, or at least
  /// SymmBuffer::ccl_buffer_size, and the same on every rank.
  int64_t ccl_buffer_size = 0;
};

/// A planned layer on a buffer: all arguments checked once, kernels chosen, sizes known.
class MEGAMOE_API MegaMoe {
 public:
  /// Not collective. Errors name the argument of the layer; a rank that gets one and whose peers run owes
  /// them SymmBuffer::refuse_call.
  static Result<std::unique_ptr<MegaMoe>> create(std::shared_ptr<SymmBuffer> buffer, Layer layer);
  ~MegaMoe();

  /// Runs the layer. Collective over the ranks of the buffer. On an error of any rank's arguments nothing is
  /// written to y or expert_token_nums; a rank that fails during the call may leave rows of y written.
  Status run(const CallArgs& args);

  /// What the stages of the last successful call left in memory on this rank, for diagnosis. Without
  /// BufferOptions::keep_stages `linear1`, `activated` and `requantised` are empty, since their memory has
  /// served other rows, and so is `linear2` where rows return as codes. To be read before any rank starts the
  /// next call.
  Result<Stages> stages() const;

  /// The plan as text, one "key: value" per line: scenario, kernels, blocks, buffer bytes.
  std::string describe() const;
  /// The same as key-value pairs, in order.
  std::vector<std::pair<std::string, std::string>> description() const;
  /// Names of the kernels of Linear1 and Linear2, then those of the shared experts; empty without experts.
  std::vector<std::string> kernels() const;

  class Impl;

 private:
  explicit MegaMoe(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace megamoe
