// NaN and Inf travel as IEEE says, subnormals count, and the flag tells.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "tests/gpu/gpu_launch.h"

namespace tcgemm {
namespace {

using GpuSpecialValuesTest = KernelTileTest;

INSTANTIATE_TEST_SUITE_P(Kernels, GpuSpecialValuesTest, testing::ValuesIn(AllKernelTiles()),
                         KernelTileName);

constexpr uint16_t kOne = 0x3f80;
constexpr uint16_t kInf = 0x7f80;
constexpr uint16_t kMinusInf = 0xff80;
constexpr uint32_t kCanonicalNan = 0x7fc00000;

void FillWith(Operands& operands, uint16_t a, uint16_t b) {
  std::fill_n(operands.a.data<uint16_t>(), operands.shape.m * operands.shape.k, a);
  std::fill_n(operands.b.data<uint16_t>(), operands.shape.k * operands.shape.n, b);
}

TEST_P(GpuSpecialValuesTest, NanStaysInItsRowAndIsCanonical) {
  for (uint16_t nan : {0x7fc0, 0xffff, 0x7f81, 0xff81}) {
    for (const Storage& storage : AllStorages()) {
      Operands operands({.m = 70, .n = 131, .k = 90}, 1);
      const GpuResult clean = Multiply(operands, storage);
      EXPECT_EQ(clean.nonfinite, 0u);
      operands.A(37, 89) = nan;
      const GpuResult result = Multiply(operands, storage);
      EXPECT_EQ(result.nonfinite, 1u);
      const uint32_t canonical = storage.output == DType::kBf16 ? 0x7fc0 : kCanonicalNan;
      const std::vector<uint32_t> before = clean.Bits();
      const std::vector<uint32_t> bits = result.Bits();
      for (size_t at = 0; at < bits.size(); ++at) {
        ASSERT_EQ(bits[at], at / 131 == 37 ? canonical : before[at])
            << at << " " << storage.ToString();
      }
    }
  }
}

TEST_P(GpuSpecialValuesTest, NanStaysInItsColumn) {
  for (const Storage& storage : AllStorages()) {
    if (storage.output == DType::kBf16) continue;
    Operands operands({.m = 70, .n = 131, .k = 90}, 2);
    const std::vector<uint32_t> clean = Multiply(operands, storage).Bits();
    operands.B(3, 130) = 0xffc1;
    const std::vector<uint32_t> bits = Multiply(operands, storage).Bits();
    for (size_t at = 0; at < bits.size(); ++at) {
      ASSERT_EQ(bits[at], at % 131 == 130 ? kCanonicalNan : clean[at]) << at;
    }
  }
}

// One bad element anywhere sets the flag: at the corners of tiles and of the matrix.
TEST_P(GpuSpecialValuesTest, TheFlagIsSetExactlyWhenDIsNotFinite) {
  const int64_t rows = GetParam().rows();
  const int64_t columns = GetParam().columns();
  const GemmShape shape{.m = rows + 9, .n = columns + 7, .k = 33};
  for (int64_t i : {int64_t{0}, shape.m - 1, rows - 1, rows}) {
    for (int64_t j : {int64_t{0}, shape.n - 1, columns - 1, columns}) {
      Operands operands(shape, 3);
      // Only row i and column j meet: 2^100·2^100 there, 2^100·0 elsewhere.
      std::fill_n(&operands.B(32, 0), shape.n, uint16_t{0});
      operands.A(i, 32) = 0x7180;
      EXPECT_EQ(Multiply(operands).nonfinite, 0u);
      operands.B(32, j) = 0x7180;
      const GpuResult result = Multiply(operands);
      EXPECT_EQ(result.nonfinite, 1u) << i << "," << j;
      EXPECT_EQ(result.Bits()[i * shape.n + j], 0x7f800000u) << i << "," << j;
    }
  }
}

TEST_P(GpuSpecialValuesTest, InfinityFollowsIeee) {
  Operands operands({.m = 4, .n = 3, .k = 300}, 1);
  FillWith(operands, kOne, kOne);
  operands.A(1, 299) = kInf;  // Inf·1 = Inf
  operands.A(2, 0) = kInf;    // Inf − Inf = NaN
  operands.A(2, 299) = kMinusInf;
  operands.A(3, 7) = kInf;  // Inf·0 = NaN, Inf·(−1) = −Inf
  operands.B(7, 0) = 0;
  operands.B(7, 1) = 0xbf80;
  const GpuResult result = Multiply(operands);
  const std::vector<uint32_t> bits = result.Bits();
  EXPECT_EQ(std::bit_cast<float>(bits[0]), 299.0f);
  EXPECT_EQ(std::bit_cast<float>(bits[1]), 298.0f);
  EXPECT_EQ(bits[3], 0x7f800000u);
  EXPECT_EQ(bits[6], kCanonicalNan);
  EXPECT_EQ(bits[9], kCanonicalNan);
  EXPECT_EQ(bits[10], 0xff800000u);
  EXPECT_EQ(bits[11], 0x7f800000u);
  EXPECT_EQ(result.nonfinite, 1u);
}

TEST_P(GpuSpecialValuesTest, RoundingToInfinityIsReported) {
  Operands operands({.m = 1, .n = 1, .k = 2}, 1);
  operands.A(0, 0) = 0x7f7f;  // 2^127·(2 − 2^-7)
  operands.A(0, 1) = 0x7b60;  // 2^119·1.75: finite in fp32, above the largest bf16
  operands.B(0, 0) = kOne;
  operands.B(1, 0) = kOne;
  const GpuResult fp32 = Multiply(operands, {.output = DType::kFp32});
  EXPECT_EQ(fp32.Bits()[0], 0x7f7fe000u);
  EXPECT_EQ(fp32.nonfinite, 0u);
  const GpuResult bf16 = Multiply(operands, {.output = DType::kBf16});
  EXPECT_EQ(bf16.Bits()[0], 0x7f80u);
  EXPECT_EQ(bf16.nonfinite, 1u);
}

// bf16 results round to nearest, ties to even, from the fp32 accumulator.
TEST_P(GpuSpecialValuesTest, TiesRoundToEven) {
  Operands operands({.m = 4, .n = 1, .k = 2}, 1);
  FillWith(operands, 0, kOne);
  for (int64_t i : {0, 1, 2, 3}) operands.A(i, 0) = static_cast<uint16_t>(kOne + i / 2);
  for (int64_t i : {0, 2}) operands.A(i, 1) = 0x3b80;  // 2^-8: half a step of bf16 at 1
  for (int64_t i : {1, 3}) operands.A(i, 1) = 0x3b81;  // a little more
  const std::vector<uint32_t> bits = Multiply(operands, {.output = DType::kBf16}).Bits();
  EXPECT_EQ(bits, (std::vector<uint32_t>{0x3f80, 0x3f81, 0x3f82, 0x3f82}));
}

// Σ|a·b| < FLT_MAX: no intermediate result may overflow.
TEST_P(GpuSpecialValuesTest, LargeSumsStayFinite) {
  Operands operands({.m = 33, .n = 65, .k = 512}, 1);
  FillWith(operands, 0x5e80, 0x5d80);  // 2^62·2^60, 512 = 2^9 times would be 2^131
  for (int64_t k = 30; k < 512; ++k) std::fill_n(&operands.B(k, 0), 65, uint16_t{0x2000});
  const GpuResult result = Multiply(operands);
  EXPECT_EQ(result.nonfinite, 0u);
  ExpectWithinBound(result, operands.MakeReference());
}

TEST_P(GpuSpecialValuesTest, SubnormalsAreNotFlushed) {
  for (const Storage& storage : AllStorages()) {
    if (storage.output == DType::kBf16) continue;
    Operands operands({.m = 70, .n = 130, .k = 300}, 1);
    FillWith(operands, 0, 0x7b80);  // B = 2^120
    operands.A(41, 280) = 0x0001;   // 2^-133
    operands.A(42, 7) = 0x807f;     // −127·2^-133
    const std::vector<uint32_t> bits = Multiply(operands, storage).Bits();
    EXPECT_EQ(bits[41 * 130 + 129], std::bit_cast<uint32_t>(0x1p-13f)) << storage.ToString();
    EXPECT_EQ(bits[42 * 130], std::bit_cast<uint32_t>(-127 * 0x1p-13f)) << storage.ToString();
    EXPECT_EQ(bits[0], 0u);
    FillWith(operands, 0x7b80, 0);
    operands.B(299, 129) = 0x8001;
    EXPECT_EQ(Multiply(operands, storage).Bits()[129], std::bit_cast<uint32_t>(-0x1p-13f));
  }
}

TEST_P(GpuSpecialValuesTest, ManySubnormalsWithinTheBound) {
  Operands operands({.m = 45, .n = 300, .k = 333}, 1);
  for (int64_t i = 0; i < 45; i += 2) {
    for (int64_t k = i; k < 333; k += 7) operands.A(i, k) = static_cast<uint16_t>(k % 127 + 1);
  }
  for (int64_t j = 256; j < 300; ++j) operands.B(j, j) = 0x8011;
  ExpectWithinBound(Multiply(operands), operands.MakeReference());
}

}  // namespace
}  // namespace tcgemm
