// Parts of the tool that need no process: hidden share, stage comparison, made-up tokens, ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <set>

#include "cli/dump_compare.h"
#include "cli/layer_job.h"
#include "cli/ranks.h"
#include "cli/small_values.h"
#include "cli/stage_compare.h"
#include "cli/trace_share.h"
#include "cli/workload.h"
#include "format/bf16.h"
#include "moe/trace.h"

namespace megamoe::cli {
namespace {

using Stage = TraceSpan::Stage;

TEST(HiddenShare, CountsComputeOfAnyRankOnce) {
  const std::vector<TraceSpan> first = {{Stage::kDispatch, 0, 0, 100}, {Stage::kLinear1, 1, 20, 40}};
  const std::vector<TraceSpan> second = {
      {Stage::kLinear2, 0, 30, 60}, {Stage::kCombine, 0, 60, 80}, {Stage::kWait, 1, 0, 100}};
  // 40 of the dispatch, nothing of the combine.
  EXPECT_DOUBLE_EQ(hidden_share({{first, second}}), 40.0 / 120.0);
  // Spans of another call hide nothing.
  EXPECT_DOUBLE_EQ(hidden_share({{first}, {second}}), 20.0 / 120.0);
  EXPECT_TRUE(std::isnan(hidden_share({{{}, {}}})));
  for (const auto& [stage, seconds] : stage_seconds({{first, second}, {first}})) {
    if (stage == trace_stage_name(Stage::kDispatch)) {
      EXPECT_DOUBLE_EQ(seconds, 200e-9);
    }
  }
}

TEST(CallRest, TailBeginsWhereTheFirstThreadHasNothingMoreToDo) {
  const std::vector<TraceSpan> first = {{Stage::kExchange, 0, 0, 10},
                                        {Stage::kLinear1, 0, 10, 60},
                                        {Stage::kLinear2, 1, 5, 80},
                                        {Stage::kWait, 0, 60, 90},
                                        {Stage::kCombine, 1, 80, 100}};
  const std::vector<TraceSpan> second = {{Stage::kDispatch, 0, 5, 95}, {Stage::kLinear1, 1, 50, 70}};
  const CallRest one = call_rest(CallSpans{first}, 2);
  EXPECT_DOUBLE_EQ(one.tail, 0.4);
  EXPECT_DOUBLE_EQ(one.idle, 1 - 155.0 / 200);
  const CallRest both = call_rest(CallSpans{first, second}, 2);
  EXPECT_DOUBLE_EQ(both.tail, 0.4);
  EXPECT_DOUBLE_EQ(both.idle, 1 - 265.0 / 400);
  // A thread that did nothing has nothing to do from the start.
  EXPECT_DOUBLE_EQ(call_rest(CallSpans{first}, 3).tail, 1);
  EXPECT_TRUE(std::isnan(call_rest(CallSpans{{}, {}}, 2).tail));
  EXPECT_TRUE(std::isnan(call_rest(std::vector<CallSpans>{}, 2).idle));
  EXPECT_DOUBLE_EQ(call_rest({CallSpans{second}, CallSpans{first}, CallSpans{first}}, 2).tail, 0.4);
}

TEST(TraceLog, SaysWhenItCouldNotKeepASpan) {
  moe::TraceLog log;
  log.enable(2, 2);
  log.add(1, Stage::kLinear1, 0, 1);
  EXPECT_TRUE(log.whole());
  log.add(1, Stage::kLinear1, 1, 2);
  log.add(1, Stage::kLinear1, 2, 3);
  EXPECT_FALSE(log.whole());
  EXPECT_EQ(log.spans().size(), 2u);
  log.clear();
  EXPECT_TRUE(log.whole());
}

reference::Stages some_stages() {
  reference::Stages s;
  s.home = {0, 0, 0, 0, 0, 1};
  s.token_codes = {1, 2};
  s.token_scales = {1, 1};
  s.linear1 = {5, 6};
  s.activated = {100, 200};
  s.requantised = {3, 4};
  s.requantised_scales = {1, 1};
  s.linear2 = {7, 8};
  return s;
}

TEST(StageCompare, NamesTheFirstStageThatDiffers) {
  const reference::Stages want = some_stages();
  const uint16_t y[2] = {0x3f80, 0x4000};
  const int32_t nums[2] = {1, 2};
  auto compare = [&](const reference::Stages& got) {
    StageDifferences d{};
    compare_stages(got, want, 1e-3, d);
    compare_outputs(y, y, 1, 2, nums, nums, 2, 1e-3, d);
    return d;
  };
  EXPECT_EQ(first_differing_stage(compare(want)), -1);

  reference::Stages got = want;
  got.linear1.clear();  // not kept: not compared
  got.activated[0] = 100.001f;
  StageDifferences d = compare(got);
  EXPECT_EQ(first_differing_stage(d), -1);
  EXPECT_EQ(d[3].compared, 0);
  EXPECT_EQ(d[4].differing, 1);

  got.linear2[1] = 9;
  got.activated[1] = 210;
  d = compare(got);
  ASSERT_EQ(first_differing_stage(d), 4);
  EXPECT_STREQ(stage_name(4), "activation");
  EXPECT_EQ(d[4].first, 0);

  got.token_codes[1] = std::nextafter(2.0f, 3.0f);  // data that is only moved must be equal
  EXPECT_EQ(first_differing_stage(compare(got)), 1);
  got.home.pop_back();
  EXPECT_EQ(first_differing_stage(compare(got)), 0);

  got = want;
  got.linear2[0] = NAN;
  EXPECT_EQ(first_differing_stage(compare(got)), 7);
}

TEST(DumpCompare, CountsRepresentableNumbers) {
  const auto bits = [](DType dtype, std::vector<uint8_t> a, std::vector<uint8_t> b,
                       std::optional<int64_t> ulps = {}) {
    const auto count = static_cast<int64_t>(a.size()) * 8 / dtype_bits(dtype);
    return compare_tensors(TensorView(a.data(), dtype, {1, count}), TensorView(b.data(), dtype, {1, count}),
                           ulps);
  };
  const auto apart = [&](DType dtype, std::vector<uint8_t> a, std::vector<uint8_t> b) {
    const TensorDifference difference = bits(dtype, a, b);
    return difference.first && difference.first->ulps ? *difference.first->ulps : -1;
  };
  EXPECT_EQ(apart(DType::kBFloat16, {0x80, 0x3f}, {0x81, 0x3f}), 1);  // 1 and the next number
  EXPECT_EQ(apart(DType::kBFloat16, {0x01, 0x00}, {0x02, 0x80}), 3);  // across zero
  EXPECT_EQ(apart(DType::kBFloat16, {0x00, 0x00}, {0x00, 0x80}), 0);  // both zeros: other bits, same value
  EXPECT_EQ(apart(DType::kFloat8E4M3, {0x38}, {0x3a}), 2);
  EXPECT_EQ(apart(DType::kFloat8E5M2, {0x04}, {0x03}), 1);
  EXPECT_EQ(apart(DType::kFloat4E2M1, {0x21}, {0x29}), 2);  // 0.5 and -0.5 in the low half
  EXPECT_EQ(apart(DType::kFloat8E8M0, {200}, {100}), 100);
  EXPECT_EQ(apart(DType::kInt8, {0x7f}, {0x80}), 255);
  EXPECT_EQ(apart(DType::kInt32, {0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}), 1);
  EXPECT_EQ(apart(DType::kFloat32, {0, 0, 0x80, 0x3f}, {0, 0, 0xc0, 0x7f}), -1);  // NaN on one side

  EXPECT_FALSE(bits(DType::kBFloat16, {0xc0, 0x7f}, {0xc1, 0xff}).first) << "NaN equals NaN";
  EXPECT_FALSE(bits(DType::kFloat8E4M3, {0x38}, {0x3a}, 2).first);
  EXPECT_TRUE(bits(DType::kFloat8E4M3, {0x38}, {0x3a}, 1).first);
  EXPECT_TRUE(bits(DType::kFloat8E4M3, {0x38}, {0x7f}, 1000).first) << "NaN is near nothing";
  EXPECT_EQ(bits(DType::kFloat8E4M3, {0x38, 0x01}, {0x7f, 0x02}).nans, 1);
  EXPECT_EQ(bits(DType::kFloat8E4M3, {0x38, 0x01}, {0x39, 0x02}).nans, 0);
  const TensorDifference difference = bits(DType::kFloat4E2M1, {0x00, 0x10}, {0x00, 0x30});
  EXPECT_EQ(difference.elements, 4);
  EXPECT_EQ(difference.differing, 1);
  EXPECT_EQ(difference.first->column, 3);
  EXPECT_EQ(difference.first->a, "0.5");
  EXPECT_EQ(difference.first->b, "1.5");
}

TEST(Workload, RandomRouting) {
  const Shape shape{8, 4, 6, 3};
  for (const char* routing : {"uniform", "zipf", "one"}) {
    auto tokens = Tokens::random(shape, 50, routing, 1, 2);
    ASSERT_TRUE(tokens) << tokens.status().message();
    const Batch batch = tokens->batch();
    const auto* ids = static_cast<const int32_t*>(batch.topk_ids.data);
    const auto* weights = static_cast<const float*>(batch.topk_weights.data);
    ASSERT_EQ(batch.more_topk_ids.size(), 1u);
    EXPECT_EQ(batch.more_topk_ids[0].data, ids + 150);
    for (int t = 0; t < 100; ++t) {
      EXPECT_EQ(std::set<int32_t>(ids + 3 * t, ids + 3 * t + 3).size(), 3u);
      if (t >= 50) continue;
      EXPECT_NEAR(weights[3 * t] + weights[3 * t + 1] + weights[3 * t + 2], 1, 1e-5);
    }
    EXPECT_EQ(tokens->distinct_experts(), std::string(routing) == "one" ? 3 : 6);
  }
  EXPECT_EQ(Tokens::random(shape, 1, "all", 1).status().message(),
            "--routing = all: expected uniform, zipf or one");
}

TEST(Workload, CountsExpertsOfARouting) {
  auto tokens = Tokens::random({8, 4, 6, 3}, 4, "one", 1, 2);
  ASSERT_TRUE(tokens);
  EXPECT_EQ(tokens->distinct_experts(1), 3);
  EXPECT_EQ(tokens->rows_of_experts(), std::vector<int64_t>{4});
}

TEST(Workload, SmallValues) {
  const auto largest = [](const LinearWeights& weights) {
    float most = 0;
    for (int i = 0; i < 32; ++i) {
      most = std::max(
          most, std::abs(format::bf16_to_float(static_cast<const uint16_t*>(weights.weight[0].data)[i])));
    }
    return most;
  };
  RandomLayer layer({8, 4, 6, 3}, 1);
  const float before1 = largest(layer.job().weight1), before2 = largest(layer.job().weight2);
  layer.multiply(0.5f, 0x1p-100f);
  EXPECT_EQ(largest(layer.job().weight1), before1 / 2);
  EXPECT_EQ(largest(layer.job().weight2), before2 * 0x1p-100f);
  std::set<std::string> names;
  for (const SmallValues& small : small_values()) names.insert(small.what);
  EXPECT_EQ(names.size(), small_values().size());
  std::vector<uint16_t> values{0x3f80, 0xc0c0};  // 1, -6
  multiply(values, 0x1p-130f);
  EXPECT_EQ(values, (std::vector<uint16_t>{0x0008, 0x8030}));
}

TEST(Workload, Router) {
  const Shape shape{2, 1, 3, 2};
  const float router[6] = {0, 0, 1, 0, -1, 0};  // by the sign of x[0]
  checkpoint::MoeLayer layer;
  layer.router = TensorView(router, DType::kFloat32, {3, 2});
  layer.scoring = "softmax";
  auto tokens = Tokens::routed(shape, 20, layer, {}, 5);
  ASSERT_TRUE(tokens) << tokens.status().message();
  const Batch batch = tokens->batch();
  const auto* x = static_cast<const uint16_t*>(batch.x.data);
  const auto* ids = static_cast<const int32_t*>(batch.topk_ids.data);
  for (int t = 0; t < 20; ++t) {
    if ((x[2 * t] & 0x7fff) == 0) continue;
    EXPECT_EQ(ids[2 * t], (x[2 * t] & 0x8000) != 0 ? 2 : 1);
    EXPECT_EQ(ids[2 * t + 1], 0);
  }
}

TEST(Workload, Shapes) {
  auto shape = parse_shape("2048x768x128x8");
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->intermediate, 768);
  for (const char* bad : {"", "1x2x3", "1x2x3x", "1x2x3x4x5", "0x1x2x2", "1x2x3x4", "axbxcxd", "1x2x3x-1"}) {
    EXPECT_FALSE(parse_shape(bad)) << bad;
  }
  EXPECT_EQ(parse_counts("1,4,16", "--tokens").value(), (std::vector<int64_t>{1, 4, 16}));
  EXPECT_FALSE(parse_counts("1,,2", "--tokens"));
  EXPECT_FALSE(parse_counts("99999999999999999999", "--tokens"));
}

TEST(Ranks, ReportTheCause) {
  for (const char* transport : {"local", "shm"}) {
    const Status status = run_on_ranks(transport, 3, [](const Group& group) {
      if (group.rank() == 1) return Status(Code::kInvalidArgument, "the cause");
      return Status(Code::kPeerFailed, "a peer failed");
    });
    EXPECT_EQ(status.message(), "the cause") << transport;
    EXPECT_TRUE(run_on_ranks(transport, 2, [](const Group&) { return Status::ok(); })) << transport;
    EXPECT_NE(run_on_ranks(transport, 1, [](const Group&) -> Status { throw std::runtime_error("thrown"); })
                  .message()
                  .find("thrown"),
              std::string::npos);
  }
}

TEST(Ranks, DeadProcess) {
  const Status status = run_on_ranks("shm", 2, [](const Group& group) {
    if (group.rank() == 1) raise(SIGKILL);
    return Status::ok();
  });
  EXPECT_EQ(status.message(), "rank 1 ended by signal 9: expected a result");
}

TEST(Ranks, SharedArrayIsSeenByForkedRanks) {
  auto array = SharedArray<int>::make(4);
  ASSERT_TRUE(array);
  ASSERT_TRUE(run_on_ranks("shm", 4, [&](const Group& group) {
    (*array)[group.rank()] = group.rank() + 1;
    return Status::ok();
  }));
  for (int r = 0; r < 4; ++r) EXPECT_EQ((*array)[r], r + 1);
}

}  // namespace
}  // namespace megamoe::cli
