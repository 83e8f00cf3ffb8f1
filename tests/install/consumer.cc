// A complete user of the installed library: one layer on one rank, compared with the reference.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "megamoe/megamoe.h"

namespace {

constexpr int64_t kExperts = 8, kTokens = 5, kTopk = 2, kHidden = 64, kInter = 32;

/// A float32 cut to bfloat16.
uint16_t bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}
float number(uint16_t code) {
  const uint32_t bits = static_cast<uint32_t>(code) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
std::vector<uint16_t> wave(int64_t count, double step) {
  std::vector<uint16_t> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(bf16(static_cast<float>(std::sin(step * static_cast<double>(i)))));
  }
  return values;
}

int fail(const megamoe::Status& status) {
  std::printf("%s: %s\n", megamoe::code_name(status.code()), status.message().c_str());
  return 1;
}

}  // namespace

int main() {
  using megamoe::DType;
  const auto x = wave(kTokens * kHidden, 0.7);
  const auto weight1 = wave(kExperts * kHidden * 2 * kInter, 0.31);
  const auto weight2 = wave(kExperts * kInter * kHidden, 0.47);
  const std::vector<float> topk_weights(kTokens * kTopk, 0.5F);
  std::vector<int32_t> topk_ids;
  for (int32_t slot = 0; slot < kTokens * kTopk; ++slot) topk_ids.push_back(slot * 3 % kExperts);

  megamoe::BufferConfig config;
  config.num_experts = kExperts;
  config.num_max_tokens_per_rank = kTokens;
  config.num_topk = kTopk;
  config.hidden = kHidden;
  config.intermediate_hidden = kInter;

  megamoe::Layer layer;
  layer.weight1.weight = {{weight1.data(), DType::kBFloat16, {kExperts, kHidden, 2 * kInter}}};
  layer.weight2.weight = {{weight2.data(), DType::kBFloat16, {kExperts, kInter, kHidden}}};

  std::vector<uint16_t> y(kTokens * kHidden), expected(kTokens * kHidden);
  std::vector<int32_t> counts(kExperts);
  megamoe::CallArgs args;
  args.x = {x.data(), DType::kBFloat16, {kTokens, kHidden}};
  args.topk_ids = {topk_ids.data(), DType::kInt32, {kTokens, kTopk}};
  args.topk_weights = {topk_weights.data(), DType::kFloat32, {kTokens, kTopk}};
  args.y = {y.data(), DType::kBFloat16, {kTokens, kHidden}};
  args.expert_token_nums = {counts.data(), DType::kInt32, {kExperts}};

  auto buffer = megamoe::SymmBuffer::create(megamoe::Group::self(), config);
  if (!buffer) return fail(buffer.status());
  auto moe = megamoe::MegaMoe::create(*buffer, layer);
  if (!moe) return fail(moe.status());
  if (megamoe::Status status = (*moe)->run(args); !status) return fail(status);

  std::vector<megamoe::reference::RankInput> ranks(1);
  ranks[0].call = args;
  ranks[0].call.y = {expected.data(), DType::kBFloat16, {kTokens, kHidden}};
  ranks[0].weight1 = layer.weight1;
  ranks[0].weight2 = layer.weight2;
  if (megamoe::Status status = megamoe::reference::mega_moe(config, layer.activation, ranks); !status) {
    return fail(status);
  }

  double difference = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    difference += std::pow(number(y[i]) - number(expected[i]), 2);
    size += std::pow(number(expected[i]), 2);
  }
  const double error = std::sqrt(difference / size);
  const bool good = size > 0 && error < 4e-3;
  std::printf("megamoe %s: one layer, error %s the bound\n", megamoe::version(), good ? "below" : "ABOVE");
  return good ? 0 : 1;
}
