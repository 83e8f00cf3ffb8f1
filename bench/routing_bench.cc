// Speed of the routing operators as ratios, each measured in turn with what it is compared with: permutation
// of rows beside memcpy, the sort beside std::stable_sort, gating beside exp and partial_sort.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "megamoe/routing.h"
#include "route/sort.h"

namespace megamoe {
namespace {

constexpr int kRounds = 11;

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Medians of both, taken in turns after one round to warm up.
std::pair<double, double> compare(const std::function<void()>& ours, const std::function<void()>& other) {
  std::vector<double> a, b;
  for (int round = 0; round <= kRounds; ++round) {
    const double first = seconds(ours), second = seconds(other);
    if (round == 0) continue;
    a.push_back(first);
    b.push_back(second);
  }
  std::nth_element(a.begin(), a.begin() + kRounds / 2, a.end());
  std::nth_element(b.begin(), b.begin() + kRounds / 2, b.end());
  return {a[kRounds / 2], b[kRounds / 2]};
}

bool check(const Status& status) {
  if (!status) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.is_ok();
}

/// bfloat16 rows of 7168 columns, `topk` places for each, beside one memcpy of as many bytes.
bool bench_permute(int64_t tokens, int64_t topk, int threads) {
  constexpr int64_t kHidden = 7168;
  const int64_t slots = tokens * topk;
  const auto bytes = static_cast<size_t>(slots * kHidden * 2);
  auto x = base::Pages::allocate(bytes, true), out = base::Pages::allocate(bytes, true);
  if (!x || !out) return check(Status(Code::kOutOfMemory, "no memory for the rows"));
  std::memset(x->data(), 1, bytes);
  std::memset(out->data(), 2, bytes);
  std::mt19937 random(1);
  std::vector<int32_t> ids(static_cast<size_t>(slots)), sorted(ids.size());
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 256);
  MoeTokenPermuteArgs args;
  args.tokens = TensorView(x->data(), DType::kBFloat16, {tokens, kHidden});
  args.indices = TensorView(ids.data(), DType::kInt32, {tokens, topk});
  auto outputs = moe_token_permute_outputs(args);
  if (!outputs) return check(outputs.status());
  outputs->permuted_tokens.data = out->data();
  outputs->sorted_indices.data = sorted.data();
  Status status;
  const auto [ours, other] =
      compare([&] { status = moe_token_permute(args, *outputs, {.threads = threads, .isa = std::nullopt}); },
              [&] { std::memcpy(out->data(), x->data(), bytes); });
  if (!check(status)) return false;
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  std::printf("permute bf16 (%lld, %lld) x %lld, %d threads: %.1f GB/s, memcpy %.1f GB/s: %.0f%%\n",
              static_cast<long long>(tokens), static_cast<long long>(kHidden), static_cast<long long>(topk),
              threads, gigabytes / ours, gigabytes / other, 100 * other / ours);
  return true;
}

bool bench_sort(int threads) {
  constexpr int64_t kSlots = 1 << 20, kExperts = 256;
  std::mt19937 random(2);
  std::vector<int32_t> ids(kSlots), places(kSlots), order(kSlots);
  std::vector<std::pair<int32_t, int32_t>> pairs(kSlots);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % kExperts);
  auto workers = route::Workers::create({.threads = threads, .isa = std::nullopt});
  if (!workers) return check(workers.status());
  const TensorView view(ids.data(), DType::kInt32, {kSlots});
  int64_t found = 0;  // the range is read, so that it is not left out
  const auto [ours, other] = compare(
      [&] {
        const route::IdView slots(view);
        found += route::id_range(slots, *workers).most;
        route::CountingSort(slots, 0, kExperts + 1, *workers)
            .place({kExperts, 0}, places.data(), order.data(), *workers);
      },
      [&] {
        for (int64_t i = 0; i < kSlots; ++i) pairs[i] = {ids[i], static_cast<int32_t>(i)};
        std::stable_sort(pairs.begin(), pairs.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
      });
  if (found == 0) return false;
  std::printf("sort 2^20 ids of 256 experts, %d threads: %.2f ms, std::stable_sort %.2f ms: %.1f times\n",
              threads, ours * 1e3, other * 1e3, other / ours);
  return true;
}

bool bench_gating(const char* scoring, int64_t groups, int threads) {
  constexpr int64_t kTokens = 1024, kExperts = 256, kTopK = 8;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> logits(kTokens * kExperts), weights(kTokens * kTopK), bias(kExperts);
  for (float& x : logits) x = normal(random);
  for (float& x : bias) x = 0.1f * normal(random);
  std::vector<int32_t> ids(kTokens * kTopK);
  MoeGatingTopKArgs args;
  args.logits = TensorView(logits.data(), DType::kFloat32, {kTokens, kExperts});
  if (groups > 1) args.bias = TensorView(bias.data(), DType::kFloat32, {kExperts});
  args.k = kTopK;
  args.scoring = scoring;
  args.n_group = groups;
  args.topk_group = (groups + 1) / 2;
  auto outputs = moe_gating_top_k_outputs(args);
  if (!outputs) return check(outputs.status());
  outputs->weights.data = weights.data();
  outputs->ids.data = ids.data();
  std::vector<std::pair<float, int32_t>> row(kExperts);
  Status status;
  const auto [ours, other] =
      compare([&] { status = moe_gating_top_k(args, *outputs, {.threads = threads, .isa = std::nullopt}); },
              [&] {
                for (int64_t t = 0; t < kTokens; ++t) {
                  float sum = 0;
                  for (int64_t e = 0; e < kExperts; ++e) {
                    row[e] = {std::exp(logits[t * kExperts + e]), static_cast<int32_t>(e)};
                    sum += row[e].first;
                  }
                  std::partial_sort(row.begin(), row.begin() + kTopK, row.end(), std::greater<>());
                  for (int64_t k = 0; k < kTopK; ++k) {
                    weights[t * kTopK + k] = row[k].first / sum;
                    ids[t * kTopK + k] = row[k].second;
                  }
                }
              });
  if (!check(status)) return false;
  std::printf(
      "gating top 8 of 256, 1024 tokens, %s, %lld groups, %d threads: %.0f us, exp and partial_sort %.0f "
      "us\n",
      scoring, static_cast<long long>(groups), threads, ours * 1e6, other * 1e6);
  return true;
}

bool run(int threads) {
  return bench_permute(8192, 1, threads) && bench_permute(2048, 8, threads) && bench_sort(threads) &&
         bench_gating("softmax", 1, threads) && bench_gating("sigmoid", 8, threads);
}

}  // namespace
}  // namespace megamoe

int main() {
  return megamoe::run(1) && megamoe::run(2) ? 0 : 1;
}
