// Ways home: merged rows, coded rows, shared experts, masks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/coded_row.h"
#include "scenario_world.h"

namespace megamoe::reference {
namespace {

float bf16(float v) {
  return format::bf16_to_float(format::bf16_from_float(v));
}

/// Two tokens over four ranks of two experts: {5, 0, 4, 1} and {7, 7, 2, -1}.
ScenarioWorld routed(int topk_weights_type = 0) {
  ScenarioWorld w(kA8W8E4M3, {2, 0, 0, 0}, 8, 4);
  const int32_t ids[] = {5, 0, 4, 1, 7, 7, 2, -1};
  std::copy(std::begin(ids), std::end(ids), w.ids(w.ranks[0]));
  w.config.topk_weights_type = topk_weights_type;
  return w;
}

/// A row of one slot, weighted unless that happened before.
std::vector<float> term(ScenarioWorld& w, int64_t token, int64_t slot) {
  std::vector<float> row = w.expert_row(0, token, slot);
  if (w.config.topk_weights_type == 1) return row;
  for (float& v : row) v = v * w.weights(w.ranks[0])[token * 4 + slot];
  return row;
}

std::vector<float> sum(std::vector<float> a, const std::vector<float>& b) {
  for (size_t h = 0; h < a.size(); ++h) a[h] = a[h] + b[h];
  return a;
}

std::vector<float> rounded(std::vector<float> row) {
  for (float& v : row) v = bf16(v);
  return row;
}

std::vector<float> y_of(const ScenarioWorld& w, int64_t token) {
  const std::vector<float> y = w.y();
  return {y.begin() + token * w.hidden, y.begin() + (token + 1) * w.hidden};
}

TEST(Combine, RowsOfOneRankMerge) {
  for (const int early : {0, 1}) {
    ScenarioWorld w = routed(early);
    w.config.combine_comm_mode = 1;
    const Status status = w.run();
    ASSERT_TRUE(status) << status.message();
    // Rank 2 has experts 4 and 5, rank 0 has 0 and 1; members add in the order of the experts.
    const std::vector<float> of_rank2 = rounded(sum(term(w, 0, 2), term(w, 0, 0)));
    const std::vector<float> of_rank0 = rounded(sum(term(w, 0, 1), term(w, 0, 3)));
    EXPECT_EQ(y_of(w, 0), rounded(sum(of_rank2, of_rank0)));
    // One expert twice merges too; a row alone is weighted at home, without a rounding.
    const std::vector<float> twice = rounded(sum(term(w, 1, 0), term(w, 1, 1)));
    EXPECT_EQ(y_of(w, 1), rounded(sum(twice, term(w, 1, 2))));
  }
}

TEST(Combine, RowsOfOneDomainMerge) {
  ScenarioWorld w = routed();
  w.config.combine_comm_mode = 2;
  w.config.topo_type = 1;
  w.config.rank_num_per_server = 2;
  const Status status = w.run();
  ASSERT_TRUE(status) << status.message();
  const std::vector<float> of_domain1 = rounded(sum(term(w, 0, 2), term(w, 0, 0)));
  const std::vector<float> of_domain0 = rounded(sum(term(w, 0, 1), term(w, 0, 3)));
  EXPECT_EQ(y_of(w, 0), rounded(sum(of_domain1, of_domain0)));
  w.config.rank_num_per_server = 4;  // all ranks in one domain
  w.config.topo_type = 2;
  ASSERT_TRUE(w.run());
  EXPECT_EQ(y_of(w, 0), rounded(sum(sum(sum(term(w, 0, 1), term(w, 0, 3)), term(w, 0, 2)), term(w, 0, 0))));
}

TEST(Combine, RowsComeAsCodes) {
  for (const int mode : {3, 4}) {
    ScenarioWorld w = routed();
    w.config.combine_quant_mode = mode;
    const Status status = w.run();
    ASSERT_TRUE(status) << status.message();
    const DType type = mode == 3 ? DType::kFloat8E5M2 : DType::kFloat8E4M3;
    std::vector<float> total;
    for (int64_t k = 0; k < 4; ++k) {
      const CodedRow coded = encode(type, w.expert_row(0, 0, k));
      std::vector<float> row(static_cast<size_t>(w.hidden));
      for (int64_t h = 0; h < w.hidden; ++h) {
        row[h] = static_cast<float>(value(coded, h)) * w.weights(w.ranks[0])[k];
      }
      total = total.empty() ? row : sum(total, row);
    }
    EXPECT_EQ(y_of(w, 0), rounded(total));
  }
}

// A world whose shared experts are the routed experts 1 and 0 of another, all slots unused.
TEST(Combine, SharedExpertsAddUnweighted) {
  for (const int early : {0, 1}) {
    for (const ScenarioTypes& types : kAllScenarios) {
      ScenarioWorld w(types, {3}, 2, 2);
      int32_t* ids = w.ids(w.ranks[0]);
      for (int t = 0; t < 3; ++t) ids[2 * t] = 1, ids[2 * t + 1] = 0;
      std::fill_n(w.weights(w.ranks[0]), 6, 1.0f);
      w.config.topk_weights_type = early;
      ASSERT_TRUE(w.run());
      const std::vector<float> routed_y = w.y();
      const std::vector<float> row0 = w.expert_row(0, 2, 1), row1 = w.expert_row(0, 2, 0);

      w.shared1 = w.layer1;
      w.shared2 = w.layer2;
      std::fill_n(ids, 6, -1);
      std::fill_n(w.weights(w.ranks[0]), 6, 9.0f);
      const Status status = w.run();
      ASSERT_TRUE(status) << status.message();
      EXPECT_EQ(w.y(), routed_y) << types.name;  // two rows: their order does not matter
      EXPECT_EQ(w.counts(), (std::vector<int32_t>{0, 0}));

      ids[4] = 0;
      w.weights(w.ranks[0])[4] = 0.5f;
      if (early == 1) continue;
      ASSERT_TRUE(w.run());
      std::vector<float> total = row0;
      for (float& v : total) v = v * 0.5f;
      EXPECT_EQ(y_of(w, 2), rounded(sum(sum(total, row0), row1)));
    }
  }
}

TEST(Combine, MaskedTokensHaveNoSharedRows) {
  ScenarioWorld w(kA8W8Int, {3}, 2, 1);
  w.shared1 = w.random_layer(DType::kInt8, 1, 72, 80);
  w.shared2 = w.random_layer(DType::kInt8, 1, 40, 72);
  w.ranks[0].mask = make_storage(DType::kInt8, {3});
  const uint8_t mask[] = {1, 0, 1};
  std::copy(std::begin(mask), std::end(mask), static_cast<uint8_t*>(w.ranks[0].mask.ref.data));
  ASSERT_TRUE(w.run());
  EXPECT_EQ(y_of(w, 1), std::vector<float>(72, 0.0f));
  EXPECT_NE(y_of(w, 0), std::vector<float>(72, 0.0f));
}

// Shared experts in every format beside routed ones in every other give what they give alone.
TEST(Combine, SharedExpertsInAnotherFormat) {
  for (const ScenarioTypes& shared : kAllScenarios) {
    ScenarioWorld alone(shared, {4}, 1, 1);
    std::fill_n(alone.ids(alone.ranks[0]), 4, 0);
    std::fill_n(alone.weights(alone.ranks[0]), 4, 1.0f);
    ASSERT_TRUE(alone.run());
    for (const ScenarioTypes& types : kAllScenarios) {
      ScenarioWorld w(types, {4}, 2, 1);
      w.ranks[0].x = alone.ranks[0].x;
      std::fill_n(w.ids(w.ranks[0]), 4, -1);
      w.shared1 = alone.layer1;
      w.shared2 = alone.layer2;
      w.shared_type = shared.token;
      const Status status = w.run();
      ASSERT_TRUE(status) << status.message();
      EXPECT_EQ(w.y(), alone.y()) << shared.name << " beside " << types.name;
    }
  }
}

}  // namespace
}  // namespace megamoe::reference
