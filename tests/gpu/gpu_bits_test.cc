// The same bits from every Tensor Core kernel and tile; a row of D depends on its row of op(A), on
// op(B) and on the types, on nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/gpu/gpu_launch.h"

namespace tcgemm {
namespace {

using GpuBitsTest = GpuTest;
using GpuRowBitsTest = KernelTileTest;

INSTANTIATE_TEST_SUITE_P(Kernels, GpuRowBitsTest, testing::ValuesIn(AllKernelTiles()),
                         KernelTileName);

// A few tiny and huge values among the others.
void AddExtremes(Operands& operands) {
  for (int64_t i = 3; i < operands.shape.m; i += 17) {
    operands.A(i, i % operands.shape.k) = 0x0003;
    operands.A(i, (i + 5) % operands.shape.k) = 0x6000;
  }
  for (int64_t j = 2; j < operands.shape.n; j += 29) operands.B(j % operands.shape.k, j) = 0x8007;
}

TEST_F(GpuBitsTest, AllTensorCoreKernelsAndTilesAndLayoutsAgree) {
  const std::vector<KernelTile> kernel_tiles = gpu().Runnable(true);
  ASSERT_FALSE(kernel_tiles.empty());
  const GemmShape shapes[] = {{1, 1, 1},       {17, 19, 23},     {64, 64, 64},
                              {127, 129, 131}, {300, 301, 330},  {257, 513, 1000},
                              {5, 300, 16384}, {128, 256, 4099}, {1000, 1000, 1000}};
  for (const GemmShape& shape : shapes) {
    Operands operands(shape, 7);
    AddExtremes(operands);
    for (DType output : {DType::kFp32, DType::kBf16}) {
      std::vector<uint32_t> expected;
      for (const KernelTile& kernel_tile : kernel_tiles) {
        for (Storage storage : AllStorages()) {
          if (storage.output != output) continue;
          const std::vector<uint32_t> bits =
              gpu().MultiplyOne(kernel_tile, operands, storage).Bits();
          if (expected.empty()) expected = bits;
          ASSERT_EQ(bits == expected, true)
              << shape.ToString() << " " << storage.ToString() << ": " << kernel_tile.ToString()
              << " differs from " << kernel_tiles[0].ToString();
        }
      }
    }
  }
}

// Full waves and remainders; ends in one comparison per tile.
TEST_F(GpuBitsTest, AllTensorCoreTilesAgreeOnManyTiles) {
  const Operands operands({.m = 2050, .n = 1157, .k = 777}, 8);
  std::vector<uint32_t> expected;
  for (const KernelTile& kernel_tile : gpu().Runnable(true)) {
    const Storage storage{.b_transposed = kernel_tile.tile.m > 64};
    const std::vector<uint32_t> bits = gpu().MultiplyOne(kernel_tile, operands, storage).Bits();
    if (expected.empty()) expected = bits;
    ASSERT_EQ(bits == expected, true) << kernel_tile.ToString();
  }
}

// What the server runs: whatever ChoosePlan names for each M, the rows are those of M = 300.
TEST_F(GpuBitsTest, PlannedRowsDoNotDependOnM) {
  for (DType output : {DType::kFp32, DType::kBf16}) {
    const Storage storage{.b_transposed = output == DType::kBf16, .output = output};
    Operands tall({.m = 300, .n = 517, .k = 1030}, 9);
    AddExtremes(tall);
    const GpuProduct whole{&tall, storage};
    const GpuResult expected = std::move(gpu().MultiplyPlanned({&whole, 1})[0]);
    for (int64_t m = 1; m <= 300; ++m) {
      const int64_t row0 = m * 29 % (301 - m);
      const Operands rows = SomeRows(tall, row0, m);
      const GpuProduct product{&rows, storage};
      const GpuResult result = std::move(gpu().MultiplyPlanned({&product, 1})[0]);
      ASSERT_EQ(result.Bits() == RowsOf(expected, row0, m), true)
          << m << " rows from row " << row0 << " " << storage.ToString();
    }
  }
}

TEST_P(GpuRowBitsTest, DoNotDependOnMNorOnARowsPlace) {
  Operands tall({.m = 300, .n = 131, .k = 330}, 10);
  AddExtremes(tall);
  const GpuResult expected = Multiply(tall);
  for (int64_t m = 1; m <= 300; m += m < 70 ? 1 : 7) {
    const int64_t row0 = m * 31 % (301 - m);
    ASSERT_EQ(Multiply(SomeRows(tall, row0, m)).Bits() == RowsOf(expected, row0, m), true)
        << m << " rows from row " << row0;
  }
}

TEST_P(GpuRowBitsTest, DoNotDependOnLayoutOrPitch) {
  Operands operands({.m = 141, .n = 290, .k = 345}, 11);
  AddExtremes(operands);
  const int64_t pitch = gpu().device().info().pitch_alignment;
  for (DType output : {DType::kFp32, DType::kBf16}) {
    const std::vector<uint32_t> expected = Multiply(operands, {.output = output}).Bits();
    for (Storage storage : AllStorages()) {
      if (storage.output != output) continue;
      for (int64_t extra : {int64_t{0}, pitch}) {
        storage.extra_pitch = extra;
        ASSERT_EQ(Multiply(operands, storage).Bits() == expected, true) << storage.ToString();
      }
    }
  }
}

// Nothing is left over from the launch before, and races would show.
TEST_P(GpuRowBitsTest, RepeatTheSame) {
  const Operands operands({.m = 259, .n = 514, .k = 1027}, 12);
  Operands nan({.m = 259, .n = 514, .k = 1027}, 12);
  std::fill_n(nan.a.data<uint16_t>(), nan.shape.m * nan.shape.k, uint16_t{0x7fff});
  const std::vector<uint32_t> expected = Multiply(operands).Bits();
  for (int round = 0; round < 20; ++round) {
    if (round % 5 == 0) Multiply(nan);
    ASSERT_EQ(Multiply(operands).Bits() == expected, true) << "round " << round;
  }
}

}  // namespace
}  // namespace tcgemm
