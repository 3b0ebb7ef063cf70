// The epilogue on every CPU kernel: the very bits that element_epilogue.h foretells, a row's bits
// whatever the M, and nothing read that does not count.
#include "kernels/cpu_epilogue.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/tile/element_epilogue.h"
#include "tests/kernels/epilogue_data.h"
#include "tests/kernels/product.h"

namespace tcgemm {
namespace {

std::vector<uint32_t> SumsOf(const Product& product, int width = 2) {
  Product plain(product, {.output = DType::kFp32});
  return MultiplyAlone(plain, width);
}

void ExpectForetold(const GemmShape& shape, const ProductOptions& options,
                    const EpilogueCase& epilogue_case) {
  SCOPED_TRACE(testing::Message() << shape.ToString() << " " << epilogue_case.ToString());
  Product product(shape, options);
  const EpilogueShape d = {.m = shape.m, .n = shape.n};
  const EpilogueData data(epilogue_case, d, options.gap, options.seed);
  product.SetEpilogue(data.View());
  const std::vector<uint32_t> bits = MultiplyAlone(product);
  ASSERT_EQ(bits, ForetellBits(SumsOf(product), data.View(), d, options.output));
  product.ExpectRight();
  EXPECT_EQ(product.nonfinite(), 0u);
}

// Edges of panels, blocks and vectors.
TEST(CpuEpilogueTest, EveryKindHasTheForetoldBits) {
  const GemmShape shapes[] = {{1, 1, 1},   {1, 300, 40},  {16, 64, 32},   {17, 65, 100},
                              {70, 1, 33}, {97, 257, 64}, {130, 521, 300}};
  uint64_t turn = 0;
  for (const EpilogueCase& epilogue_case : EpilogueCases()) {
    for (const GemmShape& shape : shapes) {
      for (DType output : {DType::kBf16, DType::kFp32}) {
        ++turn;
        ASSERT_NO_FATAL_FAILURE(ExpectForetold(shape,
                                               {.a_transposed = turn / 2 % 2 == 1,
                                                .b_transposed = turn / 4 % 2 == 1,
                                                .gap = static_cast<int64_t>(turn % 3) * 5,
                                                .output = output,
                                                .seed = turn},
                                               epilogue_case));
      }
    }
  }
}

// Rows [row0, row0 + rows) of `tall`, epilogue and all, as a product of their own.
Product RowsOf(const Product& tall, const Epilogue& epilogue, int64_t row0, int64_t rows,
               DType output) {
  GemmShape shape = tall.shape();
  shape.m = rows;
  Product product(shape, {.output = output});
  for (int64_t k = 0; k < shape.k; ++k) {
    for (int64_t i = 0; i < rows; ++i) product.SetA(i, k, tall.GetA(row0 + i, k));
    for (int64_t j = 0; j < shape.n; ++j) product.SetB(k, j, tall.GetB(k, j));
  }
  product.SetEpilogue(EpilogueOfRows(epilogue, {.m = tall.shape().m, .n = shape.n}, row0, rows));
  return product;
}

TEST(CpuEpilogueTest, ARowsBitsDoNotDependOnM) {
  const GemmShape shape = {.m = 400, .n = 133, .k = 90};
  for (const BiasAxis axis : {BiasAxis::kRow, BiasAxis::kColumn}) {
    const EpilogueCase epilogue_case = {
        .alpha = 0.3f,
        .beta = 0.7f,
        .c_dtype = axis == BiasAxis::kRow ? DType::kBf16 : DType::kFp32,
        .bias = axis,
        .bias_dtype = axis == BiasAxis::kRow ? DType::kFp32 : DType::kBf16,
        .activation = axis == BiasAxis::kRow ? Activation::kGelu : Activation::kSilu};
    const DType output = axis == BiasAxis::kRow ? DType::kFp32 : DType::kBf16;
    const EpilogueData data(epilogue_case, {.m = shape.m, .n = shape.n}, 3, 5);
    Product tall(shape, {.output = output});
    tall.SetEpilogue(data.View());
    const std::vector<uint32_t> expected = MultiplyAlone(tall);
    for (int64_t m = 1; m <= 130; ++m) {
      const int64_t row0 = m * 29 % (shape.m - m);
      Product product = RowsOf(tall, data.View(), row0, m, output);
      const std::vector<uint32_t> bits = MultiplyAlone(product);
      ASSERT_TRUE(std::equal(bits.begin(), bits.end(), expected.begin() + row0 * shape.n))
          << m << " rows from row " << row0;
    }
  }
}

TEST(CpuEpilogueTest, ABatchMayMixThem) {
  std::vector<std::unique_ptr<Product>> products;
  std::vector<std::unique_ptr<EpilogueData>> data;
  std::vector<std::vector<uint32_t>> alone;
  std::vector<Product*> batch;
  uint64_t seed = 0;
  for (const EpilogueCase& epilogue_case : EpilogueCases()) {
    ++seed;
    const GemmShape shape = {.m = static_cast<int64_t>(seed * 7 % 40) + 1,
                             .n = static_cast<int64_t>(seed * 31 % 300) + 1,
                             .k = 50};
    products.push_back(std::make_unique<Product>(shape, ProductOptions{.seed = seed}));
    data.push_back(std::make_unique<EpilogueData>(
        epilogue_case, EpilogueShape{.m = shape.m, .n = shape.n}, 1, seed));
    products.back()->SetEpilogue(data.back()->View());
    alone.push_back(MultiplyAlone(*products.back()));
    // One without an epilogue between each two.
    products.push_back(std::make_unique<Product>(shape, ProductOptions{.seed = seed}));
    alone.push_back(MultiplyAlone(*products.back()));
  }
  for (auto& product : products) batch.push_back(product.get());
  Multiply(TestCpuDevice(), batch);
  for (size_t i = 0; i < products.size(); ++i) ASSERT_EQ(products[i]->TakeBits(), alone[i]) << i;
}

// BLAS: with alpha = 0 neither A nor B matters; with beta = 0 not even C's address.
TEST(CpuEpilogueTest, WhatDoesNotCountIsNotRead) {
  const GemmShape shape = {.m = 20, .n = 70, .k = 40};
  Product product(shape, {});
  product.SetA(3, 5, 0x7fc0);
  product.SetB(7, 60, 0x7f80);
  const EpilogueData data({.alpha = 0, .beta = 1, .c_dtype = DType::kFp32},
                          {.m = shape.m, .n = shape.n}, 0, 1);
  product.SetEpilogue(data.View());
  const std::vector<uint32_t> bits = MultiplyAlone(product);
  for (int64_t i = 0; i < shape.m * shape.n; ++i) {
    ASSERT_EQ(bits[i], std::bit_cast<uint32_t>(data.c.data<float>()[i])) << i;
  }
  product.ExpectRight();
  EXPECT_EQ(product.nonfinite(), 0u);

  Product scaled(shape, {});
  Epilogue epilogue;
  epilogue.alpha = 2;
  epilogue.c = {nullptr, -1, 5, 0, DType::kInt8, true};
  scaled.SetEpilogue(epilogue);
  MultiplyAlone(scaled);
  scaled.ExpectRight();
}

TEST(CpuEpilogueTest, NansAndInfinitiesOfAddendsStayInTheirPlace) {
  const GemmShape shape = {.m = 20, .n = 70, .k = 40};
  const EpilogueShape d = {.m = shape.m, .n = shape.n};
  for (const Activation activation : {Activation::kNone, Activation::kGelu}) {
    Product product(shape, {});
    EpilogueData data({.beta = 1,
                       .c_dtype = DType::kFp32,
                       .bias = BiasAxis::kColumn,
                       .bias_dtype = DType::kFp32,
                       .activation = activation},
                      d, 2, 1);
    product.SetEpilogue(data.View());
    const std::vector<uint32_t> clean = MultiplyAlone(product);
    EXPECT_EQ(product.nonfinite(), 0u);
    data.c.data<uint32_t>()[5 * 72 + 69] = 0xffc12345;
    data.bias.data<float>()[7 * 3] = std::numeric_limits<float>::infinity();
    const std::vector<uint32_t> bits = MultiplyAlone(product);
    EXPECT_EQ(product.nonfinite(), 1u);
    for (int64_t i = 0; i < shape.m; ++i) {
      for (int64_t j = 0; j < shape.n; ++j) {
        const uint32_t expected = i == 7              ? 0x7f800000
                                  : i == 5 && j == 69 ? 0x7fc00000
                                                      : clean[i * shape.n + j];
        ASSERT_EQ(bits[i * shape.n + j], expected) << i << "," << j;
      }
    }
    product.ExpectRight();
  }
}

// Every count of elements, from every place: vectors and what is left over.
TEST(CpuEpilogueTest, RunsAreElements) {
  const EpilogueShape d = {.m = 3, .n = 100};
  for (const EpilogueCase& epilogue_case : EpilogueCases()) {
    const EpilogueData data(epilogue_case, d, 2, 9);
    Matrix sums(d.m, d.n, DType::kFp32);
    FillNormal(sums, 17);
    const std::vector<uint32_t> bits(sums.data<uint32_t>(), sums.data<uint32_t>() + d.m * d.n);
    std::vector<uint32_t> expected = ForetellBits(bits, data.View(), d, DType::kFp32);
    for (int64_t count = 1; count <= 70; ++count) {
      const RowRun run = {.row = count % d.m, .column = count * 7 % 30, .count = count};
      const int64_t at = run.row * d.n + run.column;
      std::vector<float> values(count);
      for (int64_t i = 0; i < count; ++i) values[i] = std::bit_cast<float>(bits[at + i]);
      if (epilogue_case.alpha == 0) values.assign(count, 0);
      ApplyEpilogueToRun(data.View(), d, run, values.data());
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), expected[at + i])
            << epilogue_case.ToString() << " " << i << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace tcgemm
