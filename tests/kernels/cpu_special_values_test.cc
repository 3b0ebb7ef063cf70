// NaN and Inf travel as IEEE says, a neighbour's never does; subnormals count.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "matrix/bf16.h"
#include "tests/kernels/product.h"

namespace tcgemm {
namespace {

constexpr uint16_t kOne = 0x3f80;
constexpr uint16_t kInf = 0x7f80;
constexpr uint16_t kMinusInf = 0xff80;
constexpr uint32_t kCanonicalNan = 0x7fc00000;

void FillWith(Product& product, uint16_t a, uint16_t b) {
  const GemmShape shape = product.shape();
  for (int64_t k = 0; k < shape.k; ++k) {
    for (int64_t i = 0; i < shape.m; ++i) product.SetA(i, k, a);
    for (int64_t j = 0; j < shape.n; ++j) product.SetB(k, j, b);
  }
}

TEST(CpuSpecialValuesTest, NanStaysInItsRowAndIsCanonical) {
  for (uint16_t nan : {0x7fc0, 0xffff, 0x7f81, 0xff81}) {
    for (DType output : {DType::kFp32, DType::kBf16}) {
      Product product({.m = 70, .n = 130, .k = 90}, {.output = output});
      const std::vector<uint32_t> clean = MultiplyAlone(product);
      EXPECT_EQ(product.nonfinite(), 0u);
      product.SetA(37, 89, nan);
      const std::vector<uint32_t> bits = MultiplyAlone(product);
      EXPECT_EQ(product.nonfinite(), 1u);
      const uint32_t canonical = output == DType::kBf16 ? 0x7fc0 : kCanonicalNan;
      for (size_t at = 0; at < bits.size(); ++at) {
        ASSERT_EQ(bits[at], at / 130 == 37 ? canonical : clean[at]) << at;
      }
    }
  }
}

TEST(CpuSpecialValuesTest, NanStaysInItsColumn) {
  Product product({.m = 70, .n = 130, .k = 90}, {.b_transposed = true});
  const std::vector<uint32_t> clean = MultiplyAlone(product);
  product.SetB(3, 129, 0xffc1);
  const std::vector<uint32_t> bits = MultiplyAlone(product);
  for (size_t at = 0; at < bits.size(); ++at) {
    ASSERT_EQ(bits[at], at % 130 == 129 ? kCanonicalNan : clean[at]) << at;
  }
}

TEST(CpuSpecialValuesTest, InfinityFollowsIeee) {
  Product product({.m = 4, .n = 3, .k = 300}, {});
  FillWith(product, kOne, kOne);
  product.SetA(1, 299, kInf);  // Inf·1 = Inf
  product.SetA(2, 0, kInf);    // Inf − Inf = NaN
  product.SetA(2, 299, kMinusInf);
  product.SetA(3, 7, kInf);  // Inf·0 = NaN, Inf·(−1) = −Inf
  product.SetB(7, 0, 0);
  product.SetB(7, 1, 0xbf80);
  const std::vector<uint32_t> bits = MultiplyAlone(product);
  const uint32_t inf = 0x7f800000;
  EXPECT_EQ(std::bit_cast<float>(bits[0]), 299.0f);
  EXPECT_EQ(std::bit_cast<float>(bits[1]), 298.0f);
  EXPECT_EQ(bits[3], inf);
  EXPECT_EQ(bits[6], kCanonicalNan);
  EXPECT_EQ(bits[9], kCanonicalNan);
  EXPECT_EQ(bits[10], 0xff800000);
  EXPECT_EQ(bits[11], inf);
  EXPECT_EQ(product.nonfinite(), 1u);
}

TEST(CpuSpecialValuesTest, RoundingToInfinityIsReported) {
  // 2^127·(2 − 2^-9): finite in fp32, more than half a step above the largest bf16.
  for (DType output : {DType::kFp32, DType::kBf16}) {
    Product product({.m = 1, .n = 1, .k = 2}, {.output = output});
    product.SetA(0, 0, 0x7f7f);  // 2^127·(2 − 2^-7)
    product.SetB(0, 0, kOne);
    product.SetA(0, 1, 0x7b60);  // 2^119·1.75
    product.SetB(1, 0, kOne);
    const std::vector<uint32_t> bits = MultiplyAlone(product);
    if (output == DType::kBf16) {
      EXPECT_EQ(bits[0], 0x7f80u);
      EXPECT_EQ(product.nonfinite(), 1u);
    } else {
      EXPECT_EQ(bits[0], 0x7f7fe000u);
      EXPECT_EQ(product.nonfinite(), 0u);
    }
  }
}

// Σ|a·b| < FLT_MAX: no intermediate result may overflow.
TEST(CpuSpecialValuesTest, LargeSumsStayFinite) {
  Product product({.m = 33, .n = 65, .k = 512}, {});
  FillWith(product, 0x5e80, 0x5d80);  // 2^62·2^60, 512 = 2^9 times would be 2^131
  for (int64_t k = 30; k < 512; ++k) {
    for (int64_t j = 0; j < 65; ++j) product.SetB(k, j, 0x2000);
  }
  MultiplyAlone(product);
  EXPECT_EQ(product.nonfinite(), 0u);
  product.ExpectRight();
}

TEST(CpuSpecialValuesTest, SubnormalsInAAreNotFlushed) {
  Product product({.m = 70, .n = 130, .k = 300}, {});
  const std::vector<uint32_t> clean = MultiplyAlone(product);
  FillWith(product, kOne, 0x7b80);  // B = 2^120
  const std::vector<uint32_t> ones = MultiplyAlone(product);
  for (int64_t k = 0; k < 300; ++k) product.SetA(41, k, k == 280 ? 0x0001 : 0);  // 2^-133
  const std::vector<uint32_t> bits = MultiplyAlone(product);
  for (size_t at = 0; at < bits.size(); ++at) {
    const uint32_t expected = at / 130 == 41 ? std::bit_cast<uint32_t>(0x1p-13f) : ones[at];
    ASSERT_EQ(bits[at], expected) << at;
  }
}

TEST(CpuSpecialValuesTest, SubnormalsInBAreNotFlushed) {
  for (bool transposed : {false, true}) {
    Product product({.m = 70, .n = 330, .k = 300}, {.b_transposed = transposed});
    FillWith(product, 0x7b80, 0);
    product.SetB(299, 329, 0x8001);
    product.SetB(0, 0, 0x007f);
    const std::vector<uint32_t> bits = MultiplyAlone(product);
    for (int64_t i = 0; i < 70; ++i) {
      ASSERT_EQ(bits[i * 330 + 329], std::bit_cast<uint32_t>(-0x1p-13f));
      ASSERT_EQ(bits[i * 330], std::bit_cast<uint32_t>(127 * 0x1p-13f));
      ASSERT_EQ(bits[i * 330 + 1], 0u);
    }
  }
}

TEST(CpuSpecialValuesTest, ManySubnormalsWithinTheBound) {
  Product product({.m = 45, .n = 300, .k = 333}, {});
  for (int64_t i = 0; i < 45; i += 2) {
    for (int64_t k = i; k < 333; k += 7) product.SetA(i, k, static_cast<uint16_t>(k % 127 + 1));
  }
  for (int64_t j = 256; j < 300; ++j) product.SetB(j, j, 0x8011);
  MultiplyAlone(product);
  product.ExpectRight();
}

}  // namespace
}  // namespace tcgemm
