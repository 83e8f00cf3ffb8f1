// Calls against calls: pairs that take turns, on one layer or on two.
#include "cli/cliffs_measure.h"

#include <algorithm>

namespace megamoe::cli {
namespace {

/// A layer of one rank, ready to run.
struct Ready {
  std::shared_ptr<SymmBuffer> buffer;
  std::unique_ptr<MegaMoe> op;
};

bool share_buffer(const LayerJob& a, const LayerJob& b, int ranks) {
  const BufferConfig x = largest_batch_config(a, ranks), y = largest_batch_config(b, ranks);
  return x.hidden == y.hidden && x.intermediate_hidden == y.intermediate_hidden &&
         x.num_experts == y.num_experts && x.num_topk == y.num_topk &&
         x.num_max_tokens_per_rank == y.num_max_tokens_per_rank;
}

Result<std::vector<Ready>> make_ready(const std::vector<LayerJob>& layers, const Group& group,
                                      const CommonOptions& common) {
  BufferOptions options;
  options.threads = common.threads;
  options.isa = common.isa;
  std::vector<Ready> ready;
  for (const LayerJob& job : layers) {
    Ready next;
    for (size_t i = 0; i < ready.size() && next.buffer == nullptr; ++i) {
      if (share_buffer(job, layers[i], common.ranks)) next.buffer = ready[i].buffer;
    }
    if (next.buffer == nullptr) {
      auto buffer = SymmBuffer::create(group, largest_batch_config(job, common.ranks), options);
      if (!buffer) return buffer.status();
      next.buffer = std::move(*buffer);
    }
    auto layer = packed_layer(job, *next.buffer);
    if (!layer) return next.buffer->refuse_call(layer.status());
    layer->tuning = common.tuning;
    auto op = MegaMoe::create(next.buffer, std::move(*layer));
    if (!op) return next.buffer->refuse_call(op.status());
    next.op = std::move(*op);
    ready.push_back(std::move(next));
  }
  return ready;
}

}  // namespace

Result<std::vector<Pairs>> measure_comparisons(const std::vector<LayerJob>& layers,
                                               const std::vector<Comparison>& comparisons,
                                               const CommonOptions& common, int64_t repeats) {
  auto times = PairTimes::make(static_cast<int64_t>(comparisons.size()), repeats, common.ranks);
  if (!times) return times.status();
  auto body = [&](const Group& group) -> Status {
    auto ready = make_ready(layers, group, common);
    if (!ready) return ready.status();
    size_t y_size = 0, experts = 0;
    for (const LayerJob& job : layers) {
      experts = std::max(experts, static_cast<size_t>(job.config.num_experts));
      for (const Batch& batch : job.batches) {
        y_size = std::max(y_size, static_cast<size_t>(batch.tokens() * job.config.hidden));
      }
    }
    std::vector<uint16_t> y(y_size);
    std::vector<int32_t> counts(experts);
    for (size_t c = 0; c < comparisons.size(); ++c) {
      const Comparison& comparison = comparisons[c];
      // Threads of another buffer spin for a while after their call, and sleep later: a call on other threads
      // than the last one follows one of its own that is not timed.
      const bool apart =
          (*ready)[comparison.candidate.layer].buffer != (*ready)[comparison.fallback.layer].buffer;
      for (int64_t repeat = -1; repeat < repeats; ++repeat) {  // the first pair is not timed
        for (int64_t turn = 0; turn < 2; ++turn) {
          const int64_t which = (turn + repeat + 1) % 2;
          const Side& side = which == 0 ? comparison.candidate : comparison.fallback;
          const Ready& layer = (*ready)[side.layer];
          const CallArgs call = rank_args(*layer.buffer, layers[side.layer].batches[side.batch],
                                          2 * repeat + turn + 2, y.data(), counts.data());
          if (apart) MEGAMOE_RETURN_IF_ERROR(layer.op->run(call));
          double* const time =
              times->at(static_cast<int64_t>(c), std::max<int64_t>(repeat, 0), which, group.rank());
          time[0] = PairTimes::now();
          MEGAMOE_RETURN_IF_ERROR(layer.op->run(call));
          time[1] = PairTimes::now();
        }
      }
    }
    return Status::ok();
  };
  MEGAMOE_RETURN_IF_ERROR(run_on_ranks(common.transport, common.ranks, body));
  std::vector<Pairs> pairs;
  for (size_t c = 0; c < comparisons.size(); ++c)
    pairs.push_back(times->collect(static_cast<int64_t>(c), repeats));
  return pairs;
}

}  // namespace megamoe::cli
