// One layer run over all ranks on batches of tokens: results, times and trace of every batch.
#include "cli/layer_job.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "checkpoint/moe_checkpoint.h"
#include "moe/buffer.h"

namespace megamoe::cli {
namespace {

// Expert layers run for seconds on a loaded machine; a rank that waits this long has lost its peers.
constexpr std::chrono::minutes kDeadline{10};
constexpr int64_t kSpansKept = 1 << 18;
constexpr int64_t kTextKept = 1 << 14;
// A pass takes as long as the call beside it, within limits: shorter ones say little, longer ones nothing
// more.
constexpr double kShortestPass = 1e-3, kLongestPass = 25e-3;

int64_t now_ns() {
  timespec t = {};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{1'000'000'000} * t.tv_sec + t.tv_nsec;
}

/// What the ranks report about a batch.
struct BatchReport {
  SharedArray<uint16_t> y;
  SharedArray<int32_t> expert_token_nums;
  SharedArray<int64_t> times;              ///< [repeat][rank][begin, end]
  SharedArray<Ceilings> passes;            ///< [repeat + 1][rank]
  SharedArray<std::atomic<int64_t>> plan;  ///< [0]: number of timed calls, chosen by rank 0
  SharedArray<TraceSpan> spans;            ///< [rank][kSpansKept]
  SharedArray<int64_t> span_ends;          ///< [traced call][rank], in the spans of the rank
};

struct Report {
  std::vector<BatchReport> batches;
  SharedArray<char> description;  ///< "key\0value\0" of rank 0
  SharedArray<char> kernels;      ///< "name\0" of rank 0
  SharedArray<int64_t> facts;     ///< isa, threads; packed bytes of rank r at 2 + r
  SharedArray<std::atomic<int64_t>> calls;
};

template <class T>
Status make(SharedArray<T>& array, int64_t count) {
  auto made = SharedArray<T>::make(count);
  if (!made) return made.status();
  array = std::move(*made);
  return Status::ok();
}

Result<Report> make_report(const LayerJob& job, const JobOptions& options) {
  const int64_t ranks = options.common->ranks;
  Report report;
  MEGAMOE_RETURN_IF_ERROR(make(report.description, kTextKept));
  MEGAMOE_RETURN_IF_ERROR(make(report.kernels, kTextKept));
  MEGAMOE_RETURN_IF_ERROR(make(report.facts, 2 + ranks));
  MEGAMOE_RETURN_IF_ERROR(make(report.calls, 1));
  for (const Batch& batch : job.batches) {
    BatchReport& b = report.batches.emplace_back();
    MEGAMOE_RETURN_IF_ERROR(make(b.y, batch.tokens() * job.config.hidden));
    MEGAMOE_RETURN_IF_ERROR(make(b.expert_token_nums, job.config.num_experts));
    MEGAMOE_RETURN_IF_ERROR(make(b.times, options.repeats * ranks * 2));
    MEGAMOE_RETURN_IF_ERROR(make(b.passes, options.pass ? (options.repeats + 1) * ranks : 0));
    MEGAMOE_RETURN_IF_ERROR(make(b.plan, 1));
    MEGAMOE_RETURN_IF_ERROR(make(b.spans, options.traced > 0 ? ranks * kSpansKept : 0));
    MEGAMOE_RETURN_IF_ERROR(make(b.span_ends, options.traced * ranks));
  }
  return report;
}

void report_plan(const SymmBuffer& buffer, const MegaMoe& op, Report& report) {
  report.facts[0] = static_cast<int64_t>(buffer.isa());
  report.facts[1] = buffer.threads();
  const auto append = [](SharedArray<char>& texts, int64_t at, const std::string& text) {
    const auto bytes = static_cast<int64_t>(text.size()) + 1;
    if (at + bytes > texts.size()) return at;
    std::memcpy(texts.data() + at, text.c_str(), static_cast<size_t>(bytes));
    return at + bytes;
  };
  int64_t at = 0;
  for (const auto& [key, value] : op.description()) {
    const auto bytes = static_cast<int64_t>(key.size() + value.size()) + 2;
    if (at + bytes > report.description.size()) break;
    at = append(report.description, append(report.description, at, key), value);
  }
  int64_t end = 0;
  for (const std::string& name : op.kernels()) end = append(report.kernels, end, name);
}

Result<std::unique_ptr<MegaMoe>> make_op(const LayerJob& job, const JobOptions& options,
                                         const std::shared_ptr<SymmBuffer>& buffer, Report& report) {
  auto layer = packed_layer(job, *buffer);
  if (!layer) return layer.status();
  if (layer->packed1 != nullptr) {
    report.facts[2 + buffer->rank()] = layer->packed1->bytes() + layer->packed2->bytes();
  }
  layer->tuning = options.common->tuning;
  return MegaMoe::create(buffer, std::move(*layer));
}

/// As many on every rank.
int64_t traced_calls(const JobOptions& options, const BatchReport& report) {
  return std::min(options.traced, report.plan[0].load(std::memory_order_acquire));
}

Status run_batch(MegaMoe& op, const SymmBuffer& buffer, const LayerJob& job, size_t index,
                 const JobOptions& options, BatchReport& report, std::atomic<int64_t>& calls) {
  const Batch& batch = job.batches[index];
  const int rank = buffer.rank(), ranks = buffer.world_size();
  const auto call = [&](int64_t turn) {
    return rank_args(buffer, batch, turn, report.y.data(), report.expert_token_nums.data());
  };
  CallArgs args = call(0);

  double taken = 0;  // of the last call on this rank
  const auto pass = [&](int64_t before) {
    if (!options.pass) return;
    report.passes[before * ranks + rank] =
        options.pass(buffer.impl().team, rank, index, std::clamp(taken, kShortestPass, kLongestPass));
  };
  const int64_t start = now_ns();
  MEGAMOE_RETURN_IF_ERROR(op.run(args));
  taken = static_cast<double>(now_ns() - start) * 1e-9;
  pass(0);
  if (rank == 0) {
    // Published before this rank enters the first timed call, and read by the others after it.
    const double seconds = std::max(1e-9, static_cast<double>(now_ns() - start) * 1e-9);
    const double fitting = options.seconds_per_batch > 0 ? options.seconds_per_batch / seconds : INFINITY;
    report.plan[0].store(fitting >= static_cast<double>(options.repeats)
                             ? options.repeats
                             : std::max<int64_t>(1, std::llround(fitting)),
                         std::memory_order_release);
  }
  int64_t repeats = 1;
  for (int64_t i = 0; i < repeats; ++i) {
    args = call(i + 1);
    int64_t* const times = report.times.data() + (i * ranks + rank) * 2;
    times[0] = now_ns();
    MEGAMOE_RETURN_IF_ERROR(op.run(args));
    times[1] = now_ns();
    taken = static_cast<double>(times[1] - times[0]) * 1e-9;
    pass(i + 1);
    if (rank == 0) calls.fetch_add(1, std::memory_order_relaxed);
    repeats = report.plan[0].load(std::memory_order_acquire);
  }
  const int64_t traced = traced_calls(options, report);
  moe::TraceLog& trace = buffer.impl().trace;
  if (traced > 0) trace.enable(buffer.threads(), moe::TraceLog::kSpansPerThread);
  for (int64_t i = 0, kept = 0; i < traced; ++i) {
    args = call(repeats + i + 1);
    MEGAMOE_RETURN_IF_ERROR(op.run(args));
    const std::vector<TraceSpan> spans = trace.spans();
    const auto count = static_cast<int64_t>(spans.size());
    // Of a call that is not there whole nothing is kept: what it lacks would count as time without work.
    if (trace.whole() && count <= kSpansKept - kept) {
      std::copy_n(spans.begin(), count, report.spans.data() + rank * kSpansKept + kept);
      kept += count;
    }
    report.span_ends[i * ranks + rank] = kept;
  }
  trace.disable();
  return options.inspect ? options.inspect(op, args, rank) : Status::ok();
}

BatchResult collect(BatchReport&& report, const JobOptions& options) {
  const int ranks = options.common->ranks;
  BatchResult result;
  for (int64_t i = 0; i < report.plan[0].load(); ++i) {
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (int r = 0; r < ranks; ++r) {
      first = std::min(first, report.times[(i * ranks + r) * 2]);
      last = std::max(last, report.times[(i * ranks + r) * 2 + 1]);
    }
    result.seconds.push_back(static_cast<double>(last - first) * 1e-9);
  }
  for (int64_t i = 0; options.pass && i <= report.plan[0].load(); ++i) {
    Ceilings& all = result.passes.emplace_back();
    for (int r = 0; r < ranks; ++r) {
      all.bytes += report.passes[i * ranks + r].bytes;
      all.operations += report.passes[i * ranks + r].operations;
    }
  }
  for (int64_t i = 0; i < traced_calls(options, report); ++i) {
    CallSpans call;
    for (int r = 0; r < ranks; ++r) {
      const TraceSpan* const spans = report.spans.data() + r * kSpansKept;
      call.emplace_back(spans + (i == 0 ? 0 : report.span_ends[(i - 1) * ranks + r]),
                        spans + report.span_ends[i * ranks + r]);
    }
    const bool whole =
        std::none_of(call.begin(), call.end(), [](const auto& spans) { return spans.empty(); });
    if (whole) result.traced.push_back(std::move(call));
  }
  result.y = std::move(report.y);
  result.expert_token_nums = std::move(report.expert_token_nums);
  return result;
}

}  // namespace

double BatchResult::median_seconds() const {
  return median_of(seconds);
}

Result<Layer> packed_layer(const LayerJob& job, const SymmBuffer& buffer) {
  const int64_t begin = first_expert(job.config.num_experts, buffer.world_size(), buffer.rank());
  const int64_t count = buffer.experts_per_rank();
  Layer layer;
  layer.activation = job.activation;
  layer.shared_weight1 = job.shared_weight1;
  layer.shared_weight2 = job.shared_weight2;
  if (count == 0) return layer;
  auto packed1 = PackedWeights::pack_linear1(checkpoint::expert_range(job.weight1, begin, count),
                                             is_gated(job.activation), buffer.threads());
  if (!packed1) return packed1.status();
  auto packed2 =
      PackedWeights::pack_linear2(checkpoint::expert_range(job.weight2, begin, count), buffer.threads());
  if (!packed2) return packed2.status();
  layer.packed1 = std::move(*packed1);
  layer.packed2 = std::move(*packed2);
  return layer;
}

CallArgs rank_args(const SymmBuffer& buffer, const Batch& batch, int64_t turn, uint16_t* y,
                   int32_t* expert_token_nums) {
  const int rank = buffer.rank(), ranks = buffer.world_size();
  const int64_t begin = first_token(batch.tokens(), ranks, rank);
  const int64_t count = first_token(batch.tokens(), ranks, rank + 1) - begin;
  const int64_t hidden = batch.x.shape[1], local = buffer.experts_per_rank();
  const int64_t routing = routing_of(batch, turn);
  CallArgs args;
  args.x = row_range(batch.x, begin, count);
  if (batch.scales.present()) args.scales = row_range(batch.scales, begin, count);
  args.topk_ids = row_range(
      routing == 0 ? batch.topk_ids : batch.more_topk_ids[static_cast<size_t>(routing - 1)], begin, count);
  args.topk_weights = row_range(batch.topk_weights, begin, count);
  args.y = TensorRef(y + begin * hidden, DType::kBFloat16, {count, hidden});
  args.expert_token_nums = TensorRef(
      expert_token_nums + first_expert(buffer.config().num_experts, ranks, rank), DType::kInt32, {local});
  return args;
}

TensorView row_range(const TensorView& tensor, int64_t begin, int64_t count) {
  TensorView rows = tensor;
  rows.data =
      static_cast<const std::byte*>(tensor.data) + begin * tensor.strides[0] * dtype_bits(tensor.dtype) / 8;
  rows.shape[0] = count;
  return rows;
}

int64_t most_tokens_per_rank(int64_t tokens, int ranks) {
  int64_t most = 0;
  for (int r = 0; r < ranks; ++r)
    most = std::max(most, first_token(tokens, ranks, r + 1) - first_token(tokens, ranks, r));
  return most;
}

BufferConfig largest_batch_config(const LayerJob& job, int ranks) {
  BufferConfig config = job.config;
  config.num_max_tokens_per_rank = 1;
  for (const Batch& batch : job.batches) {
    config.num_max_tokens_per_rank =
        std::max(config.num_max_tokens_per_rank, most_tokens_per_rank(batch.tokens(), ranks));
  }
  return config;
}

bool is_gated(const Activation& activation) {
  return activation.name != "gelu";
}

Result<JobResult> run_layer(const LayerJob& job, const JobOptions& options, Progress* progress) {
  const CommonOptions& common = *options.common;
  const BufferConfig config = largest_batch_config(job, common.ranks);
  BufferOptions buffer_options;
  buffer_options.threads = common.threads;
  buffer_options.isa = common.isa;
  buffer_options.deadline = kDeadline;
  buffer_options.keep_stages = options.inspect != nullptr;
  auto report = make_report(job, options);
  if (!report) return report.status();

  auto body = [&](const Group& group) -> Status {
    auto buffer = SymmBuffer::create(group, config, buffer_options);
    if (!buffer) return buffer.status();
    auto op = make_op(job, options, *buffer, *report);
    if (!op) return (*buffer)->refuse_call(op.status());
    if (group.rank() == 0) report_plan(**buffer, **op, *report);
    for (size_t b = 0; b < job.batches.size(); ++b) {
      MEGAMOE_RETURN_IF_ERROR(
          run_batch(**op, **buffer, job, b, options, report->batches[b], report->calls[0]));
    }
    return Status::ok();
  };
  const int64_t expected = options.repeats * static_cast<int64_t>(job.batches.size());
  auto tick = [&] {
    if (progress != nullptr)
      progress->show(options.label, options.jobs_before * expected + report->calls[0].load(),
                     options.jobs * expected);
  };
  MEGAMOE_RETURN_IF_ERROR(run_on_ranks(common.transport, common.ranks, body, tick));

  JobResult result;
  for (BatchReport& batch : report->batches) result.batches.push_back(collect(std::move(batch), options));
  for (const char* at = report->description.data(); *at != '\0';) {
    const std::string key = at, value = at + key.size() + 1;
    result.description.emplace_back(key, value);
    at += key.size() + value.size() + 2;
  }
  for (const char* at = report->kernels.data(); *at != '\0'; at += result.kernels.back().size() + 1) {
    result.kernels.emplace_back(at);
  }
  result.isa = static_cast<Isa>(report->facts[0]);
  result.threads = static_cast<int>(report->facts[1]);
  for (int r = 0; r < common.ranks; ++r) result.packed_bytes += report->facts[2 + r];
  return result;
}

Result<ReferenceResult> run_reference(const LayerJob& job, const Batch& batch, int ranks, bool stages) {
  BufferConfig config = job.config;
  config.num_max_tokens_per_rank = std::max<int64_t>(1, most_tokens_per_rank(batch.tokens(), ranks));
  ReferenceResult result;
  const int64_t hidden = config.hidden;
  result.y.resize(static_cast<size_t>(batch.tokens() * hidden));
  result.expert_token_nums.resize(static_cast<size_t>(config.num_experts));
  std::vector<reference::RankInput> inputs(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    reference::RankInput& input = inputs[static_cast<size_t>(r)];
    const int64_t begin = first_token(batch.tokens(), ranks, r);
    const int64_t count = first_token(batch.tokens(), ranks, r + 1) - begin;
    input.call.x = row_range(batch.x, begin, count);
    if (batch.scales.present()) input.call.scales = row_range(batch.scales, begin, count);
    input.call.topk_ids = row_range(batch.topk_ids, begin, count);
    input.call.topk_weights = row_range(batch.topk_weights, begin, count);
    input.call.y = TensorRef(result.y.data() + begin * hidden, DType::kBFloat16, {count, hidden});
    const int64_t expert = first_expert(config.num_experts, ranks, r);
    const int64_t local = first_expert(config.num_experts, ranks, r + 1) - expert;
    input.call.expert_token_nums =
        TensorRef(result.expert_token_nums.data() + expert, DType::kInt32, {local});
    input.weight1 = checkpoint::expert_range(job.weight1, expert, local);
    input.weight2 = checkpoint::expert_range(job.weight2, expert, local);
    input.shared_weight1 = job.shared_weight1;
    input.shared_weight2 = job.shared_weight2;
  }
  MEGAMOE_RETURN_IF_ERROR(
      reference::mega_moe(config, job.activation, inputs, stages ? &result.stages : nullptr));
  return result;
}

}  // namespace megamoe::cli
