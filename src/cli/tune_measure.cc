// One buffer, one operator for each candidate on the same packed weights, and pairs of calls.
#include "cli/tune_measure.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "cli/efficiency.h"
#include "cli/table.h"

namespace megamoe::cli {
namespace {

std::vector<double> log_ratios(const Pairs& pairs) {
  std::vector<double> logs;
  for (size_t i = 0; i < pairs.candidate.size(); ++i) {
    logs.push_back(std::log(pairs.candidate[i] / pairs.fallback[i]));
  }
  return logs;
}

moe::TuningKey key_of(const SymmBuffer& buffer, const std::string& scenario) {
  const BufferConfig& config = buffer.config();
  return {buffer.isa(),       scenario,        config.hidden,       config.intermediate_hidden,
          config.num_experts, config.num_topk, buffer.world_size(), buffer.threads()};
}

Result<std::vector<std::unique_ptr<MegaMoe>>> make_ops(const std::shared_ptr<SymmBuffer>& buffer,
                                                       const Layer& layer, const std::string& scenario,
                                                       const std::vector<Candidate>& candidates) {
  std::vector<std::unique_ptr<MegaMoe>> ops;
  for (const Candidate& candidate : candidates) {
    Layer tuned = layer;
    const auto tuning =
        Tuning::parse(moe::tuning_text({{key_of(*buffer, scenario), candidate}}), "candidate");
    if (!tuning) return tuning.status();
    tuned.tuning = *tuning;
    auto op = MegaMoe::create(buffer, std::move(tuned));
    if (!op) return op.status();
    ops.push_back(std::move(*op));
  }
  return ops;
}

}  // namespace

Result<PairTimes> PairTimes::make(int64_t pairs, int64_t repeats, int ranks) {
  auto times = SharedArray<double>::make(pairs * repeats * 2 * ranks * 2);
  if (!times) return times.status();
  PairTimes made;
  made.times_ = std::move(*times);
  made.repeats_ = repeats;
  made.ranks_ = ranks;
  return made;
}

Pairs PairTimes::collect(int64_t pair, int64_t repeats) const {
  Pairs pairs;
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    for (int64_t which = 0; which < 2; ++which) {
      const double* const time = at(pair, repeat, which, 0);
      double first = time[0], last = time[1];
      for (int64_t rank = 1; rank < ranks_; ++rank) {
        first = std::min(first, time[2 * rank]);
        last = std::max(last, time[2 * rank + 1]);
      }
      (which == 0 ? pairs.candidate : pairs.fallback).push_back(last - first);
    }
  }
  return pairs;
}

double PairTimes::now() {
  timespec t = {};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double Pairs::median() const {
  return median_of(candidate);
}
double Pairs::fallback_median() const {
  return median_of(fallback);
}
double Pairs::ratio() const {
  return std::exp(median_of(log_ratios(*this)));
}

double Pairs::noise() const {
  // The error of a median of n values, their spread taken from the median distance as of a normal one.
  constexpr double kSpreadOfDistance = 1.4826, kErrorOfMedian = 1.2533;
  std::vector<double> logs = log_ratios(*this);
  if (static_cast<int64_t>(logs.size()) < kLeastPairs) return std::numeric_limits<double>::infinity();
  // Few values show their spread badly: the quantile of Student's t at three standard errors, as a series.
  const double freedom = static_cast<double>(logs.size() - 1);
  const double errors = 3 + 7.5 / freedom + 17.25 / (freedom * freedom);
  const double middle = median_of(logs);
  for (double& value : logs) value = std::abs(value - middle);
  return errors * kErrorOfMedian * kSpreadOfDistance * median_of(logs) /
         std::sqrt(static_cast<double>(logs.size()));
}

Gain gain_of(const Measured& measured, const Measured& control) {
  Gain gain;
  double own = 0, others = 0, drift = 0;
  const auto batches = static_cast<double>(measured.size());
  for (size_t b = 0; b < measured.size(); ++b) {
    const double loss = std::log(measured[b].ratio());
    const double unrest = std::max(measured[b].noise(), control[b].noise());
    gain.value -= loss / batches;
    own += measured[b].noise() * measured[b].noise();
    others += control[b].noise() * control[b].noise();
    drift += std::log(control[b].ratio()) / batches;
    if (loss > std::max(unrest, std::abs(std::log(control[b].ratio())))) gain.worse_somewhere = true;
  }
  gain.noise = std::max(std::sqrt(std::max(own, others)) / batches, std::abs(drift));
  return gain;
}

std::string noise_text(double noise) {
  if (std::isfinite(noise) && noise > std::log(2.0)) return ">100 %";
  return or_dash(std::expm1(noise), percent);
}

bool too_noisy(const Measured& control) {
  constexpr double kMost = 0.25;
  const double noise = gain_of(control, control).noise;
  return std::isfinite(noise) && noise > std::log1p(kMost);
}

Result<TuneRun> measure_candidates(const LayerJob& job, const std::string& scenario,
                                   const CommonOptions& common, const std::vector<Candidate>& candidates,
                                   int64_t repeats, double seconds) {
  const double deadline = PairTimes::now() + seconds;
  const BufferConfig config = largest_batch_config(job, common.ranks);
  BufferOptions options;
  options.threads = common.threads;
  options.isa = common.isa;
  const auto each = static_cast<int64_t>(candidates.size());
  auto times = PairTimes::make(static_cast<int64_t>(job.batches.size()) * each, repeats, common.ranks);
  if (!times) return times.status();
  auto facts = SharedArray<int64_t>::make(2);  // level and threads of rank 0
  if (!facts) return facts.status();
  auto rounds = SharedArray<std::atomic<int64_t>>::make(static_cast<int64_t>(job.batches.size()));
  if (!rounds) return rounds.status();
  for (size_t b = 0; b < job.batches.size(); ++b) (*rounds)[static_cast<int64_t>(b)] = repeats;

  auto body = [&](const Group& group) -> Status {
    auto buffer = SymmBuffer::create(group, config, options);
    if (!buffer) return buffer.status();
    const auto refuse = [&](const Status& why) { return (*buffer)->refuse_call(why); };
    auto layer = packed_layer(job, **buffer);
    if (!layer) return refuse(layer.status());
    auto defaults = MegaMoe::create(*buffer, *layer);
    if (!defaults) return refuse(defaults.status());
    auto ops = make_ops(*buffer, *layer, scenario, candidates);
    if (!ops) return refuse(ops.status());
    if (group.rank() == 0) {
      (*facts)[0] = static_cast<int64_t>((*buffer)->isa());
      (*facts)[1] = (*buffer)->threads();
    }
    for (size_t b = 0; b < job.batches.size(); ++b) {
      const Batch& batch = job.batches[b];
      std::vector<uint16_t> y(static_cast<size_t>(batch.tokens() * config.hidden));
      std::vector<int32_t> counts(static_cast<size_t>(config.num_experts));
      const auto args = [&](int64_t turn) {
        return rank_args(**buffer, batch, turn, y.data(), counts.data());
      };
      MEGAMOE_RETURN_IF_ERROR((*defaults)->run(args(0)));
      const double begin = PairTimes::now();
      const double end = begin + (deadline - begin) / static_cast<double>(job.batches.size() - b);
      std::atomic<int64_t>& last = (*rounds)[static_cast<int64_t>(b)];
      for (int64_t i = 0; i < last.load(std::memory_order_acquire) * each; ++i) {
        const int64_t candidate = i % each, repeat = i / each;
        // Before this rank enters a call of the round, so that the others know when they have left it.
        if (group.rank() == 0 && candidate == 0 && repeat + 1 >= kLeastPairs && repeat + 1 < repeats &&
            PairTimes::now() > end) {
          last.store(repeat + 1, std::memory_order_release);
        }
        for (int64_t turn = 0; turn < 2; ++turn) {
          // Which of a pair comes first changes from one repetition to the next. Every call takes another
          // routing, or the second one would find its weights in the cache.
          const int64_t which = (turn + repeat) % 2;
          MegaMoe& op = which == 0 ? *(*ops)[static_cast<size_t>(candidate)] : **defaults;
          const CallArgs call = args(2 * i + turn);
          double* const time =
              times->at(static_cast<int64_t>(b) * each + candidate, repeat, which, group.rank());
          time[0] = PairTimes::now();
          MEGAMOE_RETURN_IF_ERROR(op.run(call));
          time[1] = PairTimes::now();
        }
      }
    }
    return Status::ok();
  };
  MEGAMOE_RETURN_IF_ERROR(run_on_ranks(common.transport, common.ranks, body));

  TuneRun run;
  run.key = {static_cast<Isa>((*facts)[0]),
             scenario,
             config.hidden,
             config.intermediate_hidden,
             config.num_experts,
             config.num_topk,
             common.ranks,
             (*facts)[1]};
  for (int64_t c = 0; c < each; ++c) {
    Measured& measured = run.measured.emplace_back();
    for (size_t b = 0; b < job.batches.size(); ++b) {
      measured.push_back(
          times->collect(static_cast<int64_t>(b) * each + c, (*rounds)[static_cast<int64_t>(b)].load()));
    }
  }
  return run;
}

}  // namespace megamoe::cli
