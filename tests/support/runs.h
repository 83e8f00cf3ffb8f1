// Ways to run a test layer over ranks that are threads of this process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/layer.h"

namespace megamoe::test {

struct RunOptions {
  int threads = 1;
  Isa isa = Isa::kGeneric;
  bool packed = true;
  std::shared_ptr<const Tuning> tuning = nullptr;
};

// Runs the layer over a local group, one entry of `ranks` per rank; expects success.
inline void run_local(const TestLayer& layer, std::vector<RankTokens>& ranks, int64_t max_tokens,
                      const RunOptions& run) {
  const int size = static_cast<int>(ranks.size());
  on_local_ranks(size, [&](int rank, const Group& group) {
    RankTokens& tokens = ranks[static_cast<size_t>(rank)];
    layer.poison(tokens);
    auto buffer = SymmBuffer::create(group, layer.config(max_tokens), options(run.threads, run.isa));
    ASSERT_TRUE(buffer) << buffer.status().message();
    Layer planned = layer.layer(size, rank, run.packed);
    planned.tuning = run.tuning;
    auto moe = MegaMoe::create(*buffer, std::move(planned));
    ASSERT_TRUE(moe) << moe.status().message();
    const Status status = (*moe)->run(layer.args(tokens, layer.local_experts(size, rank)));
    ASSERT_TRUE(status) << status.message();
  });
}

inline std::vector<uint16_t> gather_y(const std::vector<RankTokens>& ranks) {
  std::vector<uint16_t> all;
  for (const RankTokens& rank : ranks) all.insert(all.end(), rank.y.begin(), rank.y.end());
  return all;
}

// Splits the tokens of one rank over several, in order; `sizes` sums to the total.
inline std::vector<RankTokens> split(const RankTokens& all, const std::vector<int64_t>& sizes) {
  std::vector<RankTokens> ranks;
  int64_t at = 0;
  for (const int64_t size : sizes) {
    RankTokens rank;
    rank.tokens = size;
    const auto copy = [&](auto& to, const auto& from) {
      const auto each = static_cast<int64_t>(from.size()) / std::max<int64_t>(1, all.tokens);
      to.assign(from.begin() + at * each, from.begin() + (at + size) * each);
    };
    copy(rank.x, all.x);
    copy(rank.codes, all.codes);
    copy(rank.scales, all.scales);
    copy(rank.ids, all.ids);
    copy(rank.weights, all.weights);
    copy(rank.active, all.active);
    at += size;
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace megamoe::test
