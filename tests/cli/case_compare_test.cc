// Comparison of results with expected tensors.
#include "cli/case_compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace megamoe::cli {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T>
CaseTensor tensor(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  CaseTensor t;
  t.key = std::string("y");
  t.dtype = dtype;
  t.shape = shape;
  t.storage_shape = shape;
  t.bytes = bytes_of(values);
  return t;
}

CaseTensor within(double rel_fro, double max_abs, const std::vector<float>& values) {
  CaseTensor t = tensor(DType::kFloat32, {static_cast<int64_t>(values.size())}, values);
  t.tolerance = {false, rel_fro, max_abs};
  return t;
}

TEST(CaseCompare, ExactNamesTheFirstDifference) {
  const CaseTensor want = tensor<int32_t>(DType::kInt32, {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_TRUE(compare(want, want.bytes).pass);
  EXPECT_EQ(compare(want, want.bytes).message, "");
  const CompareResult result = compare(want, bytes_of<int32_t>({1, 2, 3, 4, -5, 7}));
  EXPECT_FALSE(result.pass);
  EXPECT_EQ(result.first, 4);
  EXPECT_EQ(result.differing, 2);
  EXPECT_EQ(result.message, "y[1][1] = -5: expected 5; 2 of 6 differ");
}

TEST(CaseCompare, ExactTellsZerosApartAndNaNsNot) {
  const CaseTensor want = tensor<float>(DType::kFloat32, {2}, {0.0f, kNaN});
  EXPECT_TRUE(compare(want, bytes_of<uint32_t>({0, 0xffc12345})).pass);
  EXPECT_EQ(compare(want, bytes_of<float>({-0.0f, kNaN})).message,
            "y[0] = -0 (0x80000000): expected 0 (0x00000000); 1 of 2 differ");
  EXPECT_FALSE(compare(want, bytes_of<float>({0, 1})).pass);
}

TEST(CaseCompare, NaNsOfNarrowTypes) {
  EXPECT_TRUE(compare(tensor<uint16_t>(DType::kBFloat16, {1}, {0x7fc0}), bytes_of<uint16_t>({0xff81})).pass);
  EXPECT_FALSE(compare(tensor<uint16_t>(DType::kBFloat16, {1}, {0x7f80}), bytes_of<uint16_t>({0x7f81})).pass);
  EXPECT_TRUE(compare(tensor<uint16_t>(DType::kFloat16, {1}, {0x7e00}), bytes_of<uint16_t>({0xfc01})).pass);
  EXPECT_TRUE(compare(tensor<uint8_t>(DType::kFloat8E4M3, {1}, {0x7f}), bytes_of<uint8_t>({0xff})).pass);
  EXPECT_FALSE(compare(tensor<uint8_t>(DType::kFloat8E4M3, {1}, {0x7f}), bytes_of<uint8_t>({0x7e})).pass);
  EXPECT_TRUE(compare(tensor<uint8_t>(DType::kFloat8E5M2, {1}, {0x7d}), bytes_of<uint8_t>({0xff})).pass);
  EXPECT_FALSE(compare(tensor<uint8_t>(DType::kFloat8E5M2, {1}, {0x7c}), bytes_of<uint8_t>({0x7d})).pass);
  EXPECT_FALSE(compare(tensor<uint8_t>(DType::kHiFloat8, {1}, {0x80}), bytes_of<uint8_t>({0})).pass);
}

TEST(CaseCompare, FourBitElements) {
  const CaseTensor want = tensor<uint8_t>(DType::kFloat4E2M1, {2, 2}, {0x21, 0x43});
  const CompareResult result = compare(want, bytes_of<uint8_t>({0x21, 0x93}));
  EXPECT_EQ(result.message, "y[1][1] = 0x9: expected 0x4; 1 of 4 differ");
}

TEST(CaseCompare, BothLimitsMustHold) {
  const CaseTensor want = within(0.1, 0.5, {3, 4});
  EXPECT_TRUE(compare(want, bytes_of<float>({3, 4.25f})).pass);  // 0.25 / 5
  const CompareResult far = compare(want, bytes_of<float>({3, 4.5f + 0.25f}));
  EXPECT_FALSE(far.pass);
  EXPECT_DOUBLE_EQ(far.max_abs, 0.75);
  EXPECT_DOUBLE_EQ(far.rel_fro, 0.15);
  EXPECT_EQ(far.first, 1);
  EXPECT_EQ(far.message,
            "y[1] = 4.75 (0x40980000): expected 4 (0x40800000); rel_fro 0.15 of 0.1, max_abs 0.75 of 0.5; 1 "
            "of 2 differ");
  EXPECT_FALSE(compare(within(1, 0.1, {3, 4}), bytes_of<float>({3, 4.25f})).pass);
  EXPECT_FALSE(compare(within(0.01, 1, {3, 4}), bytes_of<float>({3, 4.25f})).pass);
}

TEST(CaseCompare, NaNAndInfinityMustStandAtTheSamePlaces) {
  const CaseTensor want = within(1, 1, {1, kNaN, kInfinity});
  EXPECT_TRUE(compare(want, bytes_of<float>({1.25f, kNaN, kInfinity})).pass);
  EXPECT_EQ(compare(want, bytes_of<float>({1.25f, 2, kInfinity})).first, 1);
  EXPECT_FALSE(compare(want, bytes_of<float>({1.25f, 2, kInfinity})).pass);
  EXPECT_FALSE(compare(want, bytes_of<float>({kNaN, kNaN, kInfinity})).pass);
  EXPECT_FALSE(compare(want, bytes_of<float>({1, kNaN, -kInfinity})).pass);
  EXPECT_FALSE(compare(want, bytes_of<float>({1, kInfinity, kInfinity})).pass);
}

TEST(CaseCompare, ZerosExpected) {
  const CaseTensor want = within(0.5, 1, {0, 0});
  EXPECT_TRUE(compare(want, bytes_of<float>({0, -0.0f})).pass);
  const CompareResult result = compare(want, bytes_of<float>({0, 0.5f}));
  EXPECT_FALSE(result.pass);
  EXPECT_TRUE(std::isinf(result.rel_fro));
}

TEST(CaseCompare, SizesMustAgree) {
  const CaseTensor want = tensor<int8_t>(DType::kInt8, {2}, {1, 2});
  EXPECT_EQ(compare(want, bytes_of<int8_t>({1})).message, "y has 1 bytes: expected 2");
  EXPECT_TRUE(compare(tensor<int8_t>(DType::kInt8, {0}, {}), {}).pass);
}

}  // namespace
}  // namespace megamoe::cli
