// Right results for any shape, layout and ld, and nothing touched outside D.
#include <gtest/gtest.h>

#include <bit>

#include "matrix/bf16.h"
#include "tests/kernels/product.h"

namespace tcgemm {
namespace {

void ExpectRightProduct(const GemmShape& shape, const ProductOptions& options) {
  SCOPED_TRACE(testing::Message() << shape.ToString() << (options.a_transposed ? " T" : " N")
                                  << (options.b_transposed ? "T " : "N ")
                                  << std::string(DTypeName(options.output)) << " gap "
                                  << options.gap);
  Product product(shape, options);
  MultiplyAlone(product);
  product.ExpectRight();
  EXPECT_EQ(product.nonfinite(), 0u);
}

// Around a panel (16), a block (64 to 256) and a chunk (32 to 256), with every layout in turn.
TEST(CpuAccuracyTest, EdgeShapesInAllLayouts) {
  uint64_t turn = 0;
  for (int64_t m : {1, 15, 16, 17, 97}) {
    for (int64_t n : {1, 63, 65, 129, 255, 257}) {
      for (int64_t k : {1, 2, 31, 33, 65, 256, 257, 521}) {
        for (DType output : {DType::kBf16, DType::kFp32}) {
          // A prime number of turns per row of the table: layouts meet all shapes' edges.
          ++turn;
          ExpectRightProduct({.m = m, .n = n, .k = k}, {.a_transposed = (turn / 2) % 2 == 1,
                                                        .b_transposed = (turn / 4) % 2 == 1,
                                                        .gap = static_cast<int64_t>(turn % 5) * 3,
                                                        .output = output,
                                                        .seed = turn});
        }
        turn += m % 3;
      }
    }
  }
}

TEST(CpuAccuracyTest, EveryLayoutWithManyTiles) {
  for (int layout = 0; layout < 4; ++layout) {
    for (DType output : {DType::kBf16, DType::kFp32}) {
      ExpectRightProduct({.m = 545, .n = 773, .k = 301}, {.a_transposed = layout % 2 == 1,
                                                          .b_transposed = layout / 2 == 1,
                                                          .gap = 7,
                                                          .output = output});
    }
  }
}

TEST(CpuAccuracyTest, VeryLongTallAndWide) {
  ExpectRightProduct({.m = 3, .n = 5, .k = 70001}, {});
  ExpectRightProduct({.m = 20011, .n = 2, .k = 3}, {.a_transposed = true});
  ExpectRightProduct({.m = 2, .n = 20011, .k = 3}, {.b_transposed = true});
}

TEST(CpuAccuracyTest, NoInnerDimensionGivesZeros) {
  for (DType output : {DType::kBf16, DType::kFp32}) {
    Product product({.m = 35, .n = 67, .k = 0}, {.gap = 3, .output = output});
    const std::vector<uint32_t> bits = MultiplyAlone(product);
    EXPECT_EQ(bits, std::vector<uint32_t>(35 * 67, 0));
    EXPECT_EQ(product.nonfinite(), 0u);
  }
}

TEST(CpuAccuracyTest, EmptyOutputsAreNotTouched) {
  Product no_rows({.m = 0, .n = 5, .k = 4}, {});
  EXPECT_TRUE(MultiplyAlone(no_rows).empty());
  Product no_columns({.m = 5, .n = 0, .k = 4}, {});
  EXPECT_TRUE(MultiplyAlone(no_columns).empty());
}

// cpu_plain promises these very bits on every machine.
TEST(CpuAccuracyTest, PlainIsTheSimpleLoop) {
  Device& device = TestCpuDevice();
  if (device.info().backend != "plain") GTEST_SKIP() << "only cpu_plain promises this";
  Product product({.m = 41, .n = 333, .k = 700}, {.b_transposed = true});
  const std::vector<uint32_t> bits = MultiplyAlone(product);
  for (int64_t i = 0; i < 41; ++i) {
    for (int64_t j = 0; j < 333; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < 700; ++k) {
        const float p = ToFloat(Bf16{product.GetA(i, k)}) * ToFloat(Bf16{product.GetB(k, j)});
        sum = sum + p;
      }
      ASSERT_EQ(bits[i * 333 + j], std::bit_cast<uint32_t>(sum)) << i << "," << j;
    }
  }
}

}  // namespace
}  // namespace tcgemm
