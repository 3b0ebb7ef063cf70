// alpha, beta, C, bias and activations on every kernel and tile: the very bits that the host makes
// of the plain sums, for every kind, at the edges, in batches, beside NaNs.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/gpu_plan.h"
#include "kernels/tile/activation.h"
#include "tests/gpu/gpu_launch.h"
#include "tests/kernels/epilogue_data.h"

namespace tcgemm {
namespace {

using GpuEpilogueTest = KernelTileTest;
using GpuPlannedEpilogueTest = GpuTest;

INSTANTIATE_TEST_SUITE_P(Kernels, GpuEpilogueTest, testing::ValuesIn(AllKernelTiles()),
                         KernelTileName);

EpilogueShape ShapeOfD(const Operands& operands) {
  return {.m = operands.shape.m, .n = operands.shape.n};
}

// Every kind, around a tile's edges, in every layout: each case meets another of them.
TEST_P(GpuEpilogueTest, EveryKindHasTheForetoldBits) {
  const int64_t rows = GetParam().rows();
  const int64_t columns = GetParam().columns();
  const int64_t k = GetParam().tile.k;
  const GemmShape shapes[] = {{1, 1, 1},
                              {37, 19, 65},
                              {rows, columns, k},
                              {rows + 1, columns - 1, 2 * k + 1},
                              {2 * rows + 3, columns + 8, 3 * k}};
  const std::vector<Storage> storages = AllStorages();
  const int64_t pitch = gpu().device().info().pitch_alignment;
  size_t turn = 0;
  for (const GemmShape& shape : shapes) {
    const Operands operands(shape, 3);
    const std::vector<uint32_t> sums = Multiply(operands).Bits();
    const Reference reference = operands.MakeReference();
    for (const EpilogueCase& epilogue_case : EpilogueCases()) {
      Storage storage = storages[turn % 8];
      storage.extra_pitch = turn % 3 == 0 ? pitch : 0;
      ++turn;
      SCOPED_TRACE(shape.ToString() + " " + storage.ToString() + " " + epilogue_case.ToString());
      const EpilogueData data(epilogue_case, ShapeOfD(operands), 0, turn);
      const GpuResult result = Multiply(operands, storage, data.View());
      ASSERT_EQ(
          result.Bits() == ForetellBits(sums, data.View(), ShapeOfD(operands), storage.output),
          true);
      ExpectWithinBound(result, reference, data.View());
      EXPECT_EQ(result.nonfinite, 0u);
    }
  }
}

// BLAS: with alpha = 0 neither A nor B matters.
TEST_P(GpuEpilogueTest, WithAlphaZeroTheOperandsAreNotRead) {
  Operands operands({.m = 70, .n = 67, .k = 130}, 1);
  std::fill_n(operands.a.data<uint16_t>(), 70 * 130, uint16_t{0x7fc0});
  for (const DType output : {DType::kFp32, DType::kBf16}) {
    const EpilogueData data({.alpha = 0, .beta = -3, .c_dtype = DType::kFp32}, ShapeOfD(operands),
                            0, 1);
    const GpuResult result = Multiply(operands, {.output = output}, data.View());
    EXPECT_EQ(result.Bits(), ForetellBits(std::vector<uint32_t>(70 * 67, 0), data.View(),
                                          ShapeOfD(operands), output));
    EXPECT_EQ(result.nonfinite, 0u);
  }
}

TEST_P(GpuEpilogueTest, NansAndInfinitiesOfAddendsStayInTheirPlace) {
  const Operands operands({.m = 70, .n = 67, .k = 33}, 2);
  for (const DType output : {DType::kFp32, DType::kBf16}) {
    EpilogueData data({.beta = 1,
                       .c_dtype = DType::kFp32,
                       .bias = BiasAxis::kRow,
                       .bias_dtype = DType::kFp32,
                       .activation = Activation::kGelu},
                      ShapeOfD(operands), 0, 3);
    const std::vector<uint32_t> clean = Multiply(operands, {.output = output}, data.View()).Bits();
    data.c.data<uint32_t>()[69 * 67 + 66] = 0xffc12345;
    data.c.data<float>()[3] = std::numeric_limits<float>::infinity();
    data.bias.data<float>()[65] = -std::numeric_limits<float>::infinity();
    const GpuResult result = Multiply(operands, {.output = output}, data.View());
    EXPECT_EQ(result.nonfinite, 1u);
    const std::vector<uint32_t> bits = result.Bits();
    const int shift = output == DType::kBf16 ? 16 : 0;
    for (size_t at = 0; at < bits.size(); ++at) {
      const uint32_t expected = at == 69 * 67 + 66 ? 0x7fc00000u >> shift
                                : at == 3          ? 0x7f800000u >> shift
                                : at % 67 == 65    ? 0u  // GELU of -Inf
                                                   : clean[at];
      ASSERT_EQ(bits[at], expected) << at;
    }
  }
}

// Floats of all sizes through each activation: the device's arithmetic is the host's.
TEST_P(GpuEpilogueTest, ActivationsAreTheHostsBitByBit) {
  const Operands operands({.m = 300, .n = 500, .k = 1}, 4);
  EpilogueData data({.alpha = 0, .beta = 1, .c_dtype = DType::kFp32}, ShapeOfD(operands), 0, 1);
  for (uint32_t i = 0; i < 300 * 500; ++i) data.c.data<uint32_t>()[i] = i * 28631u;
  for (const Activation activation : {Activation::kRelu, Activation::kGelu, Activation::kSilu}) {
    data.epilogue_case.activation = activation;
    const GpuResult result = Multiply(operands, {}, data.View());
    const std::vector<uint32_t> expected = ForetellBits(
        std::vector<uint32_t>(300 * 500, 0), data.View(), ShapeOfD(operands), DType::kFp32);
    ASSERT_EQ(result.Bits() == expected, true) << ActivationName(activation);
  }
}

// A launch of all kinds, plain products between them, and neighbours full of NaN.
TEST_P(GpuEpilogueTest, InABatchEachEqualsItselfAlone) {
  if (!GetParam().grouped) GTEST_SKIP() << "this tile takes one problem a launch";
  std::vector<std::unique_ptr<Operands>> operands;
  std::vector<std::unique_ptr<EpilogueData>> data;
  std::vector<GpuProduct> products;
  const std::vector<EpilogueCase> cases = EpilogueCases();
  for (size_t i = 0; i < 3 * cases.size(); ++i) {
    const GemmShape shape{.m = static_cast<int64_t>(i * 37) % (GetParam().rows() + 30) + 1,
                          .n = static_cast<int64_t>(i * 53) % (GetParam().columns() + 30) + 1,
                          .k = static_cast<int64_t>(i * 71) % 200 + 1};
    operands.push_back(std::make_unique<Operands>(shape, i + 1));
    if (i % 3 == 2) std::fill_n(operands.back()->a.data<uint16_t>(), shape.m * shape.k, 0x7fff);
    data.push_back(std::make_unique<EpilogueData>(cases[i / 3], ShapeOfD(*operands.back()), 0, i));
    products.push_back({operands.back().get(),
                        {.a_transposed = i % 2 == 1, .b_transposed = i / 2 % 2 == 1},
                        i % 3 == 0 ? data.back()->View() : Epilogue{}});
  }
  const std::vector<GpuResult> together = gpu().Multiply(GetParam(), products);
  for (size_t i = 0; i < products.size(); ++i) {
    if (i % 3 == 2) continue;
    const GpuProduct& product = products[i];
    const GpuResult alone = Multiply(*product.operands, product.storage, product.epilogue);
    ASSERT_EQ(together[i].Bits() == alone.Bits(), true) << i;
    EXPECT_EQ(together[i].nonfinite, 0u) << i;
  }
}

// What the server runs: whatever ChoosePlan names for each M, the rows are those of M = 300.
TEST_F(GpuPlannedEpilogueTest, RowsDoNotDependOnM) {
  const Operands tall({.m = 300, .n = 261, .k = 530}, 9);
  for (const BiasAxis axis : {BiasAxis::kRow, BiasAxis::kColumn}) {
    const bool row = axis == BiasAxis::kRow;
    const Storage storage{.b_transposed = row, .output = row ? DType::kFp32 : DType::kBf16};
    const EpilogueData data({.alpha = 0.05f,
                             .beta = 0.7f,
                             .c_dtype = row ? DType::kBf16 : DType::kFp32,
                             .bias = axis,
                             .bias_dtype = row ? DType::kFp32 : DType::kBf16,
                             .activation = row ? Activation::kGelu : Activation::kSilu},
                            ShapeOfD(tall), 0, 5);
    const GpuProduct whole{&tall, storage, data.View()};
    const GpuResult expected = std::move(gpu().MultiplyPlanned({&whole, 1})[0]);
    for (int64_t m = 1; m <= 130; ++m) {
      const int64_t row0 = m * 29 % (301 - m);
      const Operands rows = SomeRows(tall, row0, m);
      const GpuProduct product{&rows, storage,
                               EpilogueOfRows(data.View(), ShapeOfD(tall), row0, m)};
      const GpuResult result = std::move(gpu().MultiplyPlanned({&product, 1})[0]);
      ASSERT_EQ(result.Bits() == RowsOf(expected, row0, m), true)
          << m << " rows from row " << row0 << " " << storage.ToString();
    }
  }
}

// Many tiles of each kind, compared across kernels.
TEST_F(GpuPlannedEpilogueTest, AllTensorCoreKernelsAgreeOnManyTiles) {
  const Operands operands({.m = 1030, .n = 777, .k = 300}, 8);
  const EpilogueData data({.alpha = 0.1f,
                           .beta = 1,
                           .c_dtype = DType::kBf16,
                           .bias = BiasAxis::kRow,
                           .activation = Activation::kGelu},
                          ShapeOfD(operands), 0, 5);
  for (const DType output : {DType::kFp32, DType::kBf16}) {
    std::vector<uint32_t> expected;
    for (const KernelTile& kernel_tile : gpu().Runnable(true)) {
      const Storage storage{.b_transposed = kernel_tile.tile.m > 64, .output = output};
      const std::vector<uint32_t> bits =
          gpu().MultiplyOne(kernel_tile, operands, storage, data.View()).Bits();
      if (expected.empty()) expected = bits;
      ASSERT_EQ(bits == expected, true) << kernel_tile.ToString();
    }
  }
}

}  // namespace
}  // namespace tcgemm
