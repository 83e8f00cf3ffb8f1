// Weights of every type in every layout, stacked or one tensor per expert, raw or packed: the same bits.
#include <gtest/gtest.h>

#include <deque>

#include "format/fractal.h"
#include "support/runs.h"

namespace megamoe {
namespace {

using test::LayerOptions;
using test::RankTokens;
using test::TestLayer;

// Widths that int32 words of eight int4 fit into, and that end inside a tile of every layout.
constexpr int64_t kHidden = 72, kInner = 40, kExperts = 3;

struct Form {
  const char* name;
  Layout layout;
  bool turned;      ///< (N, K) where the scenario has (K, N), or the other way round
  bool per_expert;  ///< a list of tensors
  bool words;       ///< int4 as int32
  bool gaps;        ///< rows and experts stand apart
};
constexpr Form kForms[] = {
    {"turned", Layout::kNd, true, false, false, false},
    {"with gaps", Layout::kNd, false, false, false, true},
    {"turned, with gaps, per expert", Layout::kNd, true, true, false, true},
    {"per expert", Layout::kNd, false, true, false, false},
    {"FRACTAL_NZ", Layout::kFractalNz, false, false, false, false},
    {"FRACTAL_NZ, turned, per expert", Layout::kFractalNz, true, true, false, false},
    {"FRACTAL_NZ_C0_32", Layout::kFractalNzC0_32, false, false, false, false},
    {"FRACTAL_NZ_C0_32, turned", Layout::kFractalNzC0_32, true, false, false, false},
    {"words", Layout::kNd, false, false, true, false},
    {"words in FRACTAL_NZ, per expert", Layout::kFractalNz, false, true, true, false},
};

uint32_t get(const std::byte* data, int bits, int64_t at) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(data);
  if (bits == 4) return bytes[at / 2] >> (at % 2 * 4) & 15u;
  if (bits == 8) return bytes[at];
  return static_cast<uint32_t>(bytes[2 * at]) | static_cast<uint32_t>(bytes[2 * at + 1]) << 8;
}

void put(std::byte* data, int bits, int64_t at, uint32_t value) {
  auto* bytes = reinterpret_cast<uint8_t*>(data);
  if (bits == 4) {
    const int shift = static_cast<int>(at % 2 * 4);
    bytes[at / 2] = static_cast<uint8_t>((bytes[at / 2] & ~(15 << shift)) | value << shift);
    return;
  }
  for (int b = 0; b < bits / 8; ++b) bytes[at * bits / 8 + b] = static_cast<uint8_t>(value >> (8 * b));
}

/// Weights in another form, in memory of their own.
class Rearranged {
 public:
  LinearWeights operator()(const LinearWeights& from, const Form& form) {
    LinearWeights to = from;
    const TensorView& source = from.weight[0];  // stacked and contiguous
    const int bits = dtype_bits(source.dtype);
    to.k_last = from.k_last != form.turned;
    const int64_t experts = source.shape[0];
    const int64_t rows = source.shape[form.turned ? 2 : 1], columns = source.shape[form.turned ? 1 : 2];
    const format::Fractal fractal{rows, columns, format::fractal_c0(source.dtype, form.layout)};
    const int64_t row_step = columns + (form.gaps ? 6 : 0);
    const int64_t matrix =
        form.layout == Layout::kNd ? rows * row_step + (form.gaps ? 10 : 0) : fractal.elements();
    std::vector<std::byte>& memory =
        memory_.emplace_back(static_cast<size_t>(experts * matrix * bits / 8 + 64));
    std::fill(memory.begin(), memory.end(), std::byte{0x55});
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t place = form.layout == Layout::kNd ? r * row_step + c : fractal.offset(r, c);
          const int64_t was = e * rows * columns + (form.turned ? c * rows + r : r * columns + c);
          put(memory.data(), bits, e * matrix + place,
              get(static_cast<const std::byte*>(source.data), bits, was));
        }
      }
    }
    const int64_t word = form.words ? 8 : 1;
    const DType dtype = form.words ? DType::kInt32 : source.dtype;
    to.weight.clear();
    for (int64_t e = 0; e < (form.per_expert ? experts : 1); ++e) {
      TensorView t(memory.data() + e * matrix * bits / 8, dtype, {experts, rows, columns / word},
                   form.layout);
      t.strides[0] = matrix / word;
      t.strides[1] = row_step / word;
      to.weight.push_back(form.per_expert ? dropped(t, 0) : t);
    }
    if (!form.per_expert) return to;
    for (std::vector<TensorView>* list : {&to.scale, &to.zero, &to.bias, &to.added_bias}) split(*list);
    return to;
  }

 private:
  /// Matrix `expert` of a stacked tensor.
  static TensorView dropped(const TensorView& t, int64_t expert) {
    TensorView one = t;
    one.data = static_cast<const std::byte*>(t.data) + expert * t.strides[0] * dtype_bits(t.dtype) / 8;
    one.dims = t.dims - 1;
    for (int d = 0; d < one.dims; ++d) {
      one.shape[d] = t.shape[d + 1];
      one.strides[d] = t.strides[d + 1];
    }
    return one;
  }
  static void split(std::vector<TensorView>& list) {
    if (list.empty()) return;
    const TensorView stacked = list[0];
    list.clear();
    for (int64_t e = 0; e < stacked.shape[0]; ++e) list.push_back(dropped(stacked, e));
  }

  std::deque<std::vector<std::byte>> memory_;
};

class Layouts : public testing::TestWithParam<const char*> {};

TEST_P(Layouts, GiveTheSameBits) {
  const test::ScenarioTraits& traits = test::traits_of(GetParam());
  LayerOptions options;
  options.biases = true;
  options.interleave = 1;
  TestLayer layer({kHidden, kInner, kExperts, 2, GetParam(), "swiglu"}, 7, options);
  RankTokens tokens = layer.tokens(11);
  for (const Isa isa : {Isa::kGeneric, default_isa().value()}) {
    auto buffer = SymmBuffer::create(Group::self(), layer.config(11), test::options(2, isa));
    ASSERT_TRUE(buffer) << buffer.status().message();
    const auto run = [&](const Layer& given, const std::string& name) {
      layer.poison(tokens);
      auto moe = MegaMoe::create(*buffer, given);
      EXPECT_TRUE(moe) << name << ": " << moe.status().message();
      if (moe) {
        const Status status = (*moe)->run(layer.args(tokens, kExperts));
        EXPECT_TRUE(status) << name << ": " << status.message();
      }
      return tokens.y;
    };
    const std::vector<uint16_t> want = run(layer.layer(1, 0, true), "as it is");
    for (const Form& form : kForms) {
      if (form.words && traits.weight != DType::kInt4) continue;
      if (form.layout == Layout::kFractalNzC0_32 && !traits.nibbles()) continue;
      Rearranged rearranged;
      Layer given = layer.layer(1, 0, false);
      given.weight1 = rearranged(given.weight1, form);
      given.weight2 = rearranged(given.weight2, form);
      EXPECT_EQ(run(given, form.name), want) << form.name << ", raw, " << isa_name(isa);
      auto packed1 = PackedWeights::pack_linear1(given.weight1, true, 2);
      auto packed2 = PackedWeights::pack_linear2(given.weight2, 2);
      ASSERT_TRUE(packed1) << form.name << ": " << packed1.status().message();
      ASSERT_TRUE(packed2) << form.name << ": " << packed2.status().message();
      given.weight1 = given.weight2 = {};
      given.packed1 = *packed1;
      given.packed2 = *packed2;
      EXPECT_EQ(run(given, form.name), want) << form.name << ", packed, " << isa_name(isa);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Layouts, testing::ValuesIn(test::scenario_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace megamoe
