// The same bits: a row of D depends on its row of op(A), on op(B) and the types; on nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/kernels/product.h"

namespace tcgemm {
namespace {

// A few tiny values among the others, so that the paths for subnormals take part.
void AddSubnormals(Product& product) {
  const GemmShape shape = product.shape();
  for (int64_t i = 5; i < shape.m; i += 37) product.SetA(i, i % shape.k, 0x0003);
  if (shape.n > 200) product.SetB(shape.k / 2, 200, 0x8007);
}

// Rows [row0, row0 + rows) of op(A) as a product of its own.
Product RowsOf(const Product& tall, int64_t row0, int64_t rows, const ProductOptions& options) {
  GemmShape shape = tall.shape();
  shape.m = rows;
  Product product(shape, options);
  for (int64_t k = 0; k < shape.k; ++k) {
    for (int64_t i = 0; i < rows; ++i) product.SetA(i, k, tall.GetA(row0 + i, k));
    for (int64_t j = 0; j < shape.n; ++j) product.SetB(k, j, tall.GetB(k, j));
  }
  return product;
}

void ExpectRowsEqual(const std::vector<uint32_t>& tall, const std::vector<uint32_t>& rows,
                     int64_t row0, int64_t n) {
  ASSERT_TRUE(std::equal(rows.begin(), rows.end(), tall.begin() + row0 * n))
      << rows.size() / n << " rows from row " << row0;
}

TEST(CpuBitsTest, DoNotDependOnMNorOnARowsPlace) {
  for (DType output : {DType::kFp32, DType::kBf16}) {
    Product tall({.m = 700, .n = 301, .k = 330}, {.output = output});
    AddSubnormals(tall);
    const std::vector<uint32_t> expected = MultiplyAlone(tall);
    for (int64_t m = 1; m <= 130; m += output == DType::kFp32 ? 1 : 13) {
      const int64_t row0 = m * 29 % (700 - m);
      Product product = RowsOf(tall, row0, m, {.output = output});
      ASSERT_NO_FATAL_FAILURE(ExpectRowsEqual(expected, MultiplyAlone(product), row0, 301));
    }
  }
}

TEST(CpuBitsTest, SmallProductsRowByRow) {
  for (int64_t k : {1, 3, 17, 64, 100}) {
    Product tall({.m = 70, .n = 33, .k = k}, {.seed = static_cast<uint64_t>(k)});
    const std::vector<uint32_t> expected = MultiplyAlone(tall);
    for (int64_t i = 0; i < 70; ++i) {
      Product product = RowsOf(tall, i, 1, {});
      ASSERT_NO_FATAL_FAILURE(ExpectRowsEqual(expected, MultiplyAlone(product), i, 33));
    }
  }
}

TEST(CpuBitsTest, DoNotDependOnLayoutOrLd) {
  Product product({.m = 77, .n = 290, .k = 345}, {});
  AddSubnormals(product);
  const std::vector<uint32_t> expected = MultiplyAlone(product);
  for (int layout = 0; layout < 4; ++layout) {
    for (int64_t gap : {0, 1, 64}) {
      Product other(product,
                    {.a_transposed = layout % 2 == 1, .b_transposed = layout / 2 == 1, .gap = gap});
      ASSERT_EQ(MultiplyAlone(other), expected) << "layout " << layout << " gap " << gap;
    }
  }
}

TEST(CpuBitsTest, DoNotDependOnThreads) {
  Product product({.m = 600, .n = 700, .k = 290}, {});
  AddSubnormals(product);
  const std::vector<uint32_t> expected = MultiplyAlone(product, 1);
  for (int width : {2, 3, 7}) ASSERT_EQ(MultiplyAlone(product, width), expected) << width;
}

TEST(CpuBitsTest, DoNotDependOnTheBatch) {
  std::vector<std::unique_ptr<Product>> products;
  std::vector<std::vector<uint32_t>> alone;
  for (uint64_t i = 0; i < 40; ++i) {
    const GemmShape shape{.m = static_cast<int64_t>(i * 7 % 90) + 1,
                          .n = static_cast<int64_t>(i * 11 % 300) + 1,
                          .k = static_cast<int64_t>(i * 13 % 280) + 1};
    products.push_back(std::make_unique<Product>(
        shape, ProductOptions{.a_transposed = i % 2 == 1, .b_transposed = i % 3 == 1, .seed = i}));
    alone.push_back(MultiplyAlone(*products.back()));
  }
  // Neighbours full of NaN, and one so large that all tiles grow.
  Product nan({.m = 64, .n = 64, .k = 64}, {});
  for (int64_t i = 0; i < 64; ++i) {
    for (int64_t k = 0; k < 64; ++k) nan.SetA(i, k, 0xffff);
  }
  Product large({.m = 3000, .n = 2000, .k = 40}, {});
  std::vector<Product*> batch = {&nan, &large};
  for (auto& product : products) batch.insert(batch.begin() + batch.size() / 2, product.get());
  Multiply(TestCpuDevice(), batch);
  for (size_t i = 0; i < products.size(); ++i) {
    ASSERT_EQ(products[i]->TakeBits(), alone[i]) << "product " << i;
    EXPECT_EQ(products[i]->nonfinite(), 0u);
  }
  EXPECT_EQ(nan.nonfinite(), 1u);
}

// A launch repeated gives the same again: nothing is left over in the scratch.
TEST(CpuBitsTest, DoNotDependOnWhatRanBefore) {
  Product product({.m = 40, .n = 70, .k = 50}, {});
  const std::vector<uint32_t> expected = MultiplyAlone(product);
  Product nan({.m = 512, .n = 512, .k = 512}, {});
  for (int64_t i = 0; i < 512; ++i) {
    for (int64_t k = 0; k < 512; ++k) {
      nan.SetA(i, k, 0x7fff);
      nan.SetB(i, k, 0x0001);
    }
  }
  MultiplyAlone(nan);
  EXPECT_EQ(MultiplyAlone(product), expected);
}

}  // namespace
}  // namespace tcgemm
