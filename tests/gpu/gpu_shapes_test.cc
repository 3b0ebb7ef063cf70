// Every kernel, tile and layout: right results for any shape, nothing touched outside D.
#include <gtest/gtest.h>

#include <vector>

#include "tests/gpu/gpu_launch.h"

namespace tcgemm {
namespace {

using GpuShapesTest = KernelTileTest;

INSTANTIATE_TEST_SUITE_P(Kernels, GpuShapesTest, testing::ValuesIn(AllKernelTiles()),
                         KernelTileName);

void ExpectRight(Gpu& gpu, const KernelTile& kernel_tile, const GemmShape& shape,
                 const std::vector<Storage>& storages, uint64_t seed) {
  const Operands operands(shape, seed);
  const Reference reference = operands.MakeReference();
  for (const Storage& storage : storages) {
    SCOPED_TRACE(shape.ToString() + " " + storage.ToString());
    const GpuResult result = gpu.MultiplyOne(kernel_tile, operands, storage);
    ExpectWithinBound(result, reference);
    EXPECT_EQ(result.nonfinite, 0u);
  }
}

// The first few to run, and small enough for compute-sanitizer.
TEST_P(GpuShapesTest, FewEdges) {
  const GpuTile tile = GetParam().tile;
  const int64_t rows = GetParam().rows();
  const int64_t columns = GetParam().columns();
  const std::vector<Storage> all = AllStorages();
  ExpectRight(gpu(), GetParam(), {.m = 1, .n = 1, .k = 1}, all, 1);
  ExpectRight(gpu(), GetParam(), {.m = 37, .n = 19, .k = 65}, all, 2);
  ExpectRight(gpu(), GetParam(), {.m = rows, .n = columns, .k = tile.k}, all, 3);
  ExpectRight(gpu(), GetParam(), {.m = rows + 1, .n = columns - 1, .k = 2 * tile.k + 1}, all, 4);
}

// Dimensions around a tile, primes, and K around k16 steps and stages. The lengths of the lists
// and the number of storages have no common factor but 7 and 7, whose indices run at different
// speeds: every (m, k, storage) and every (m, n, k) meets.
TEST_P(GpuShapesTest, EdgesOfTiles) {
  const int64_t rows = GetParam().rows();
  const int64_t columns = GetParam().columns();
  const std::vector<int64_t> ms = {1, rows - 1, rows, rows + 1, 37, 131, 257};
  const std::vector<int64_t> ns = {1, columns - 1, columns, columns + 1, 37, 131, 257};
  const std::vector<int64_t> ks = {1, 15, 16, 17, 63, 64, 65, 130, 1000};
  const std::vector<Storage> storages = AllStorages();
  for (size_t turn = 0; turn < 7 * 8 * 9; ++turn) {
    const GemmShape shape{.m = ms[turn % 7], .n = ns[turn / 7 % 7], .k = ks[turn % 9]};
    ExpectRight(gpu(), GetParam(), shape, {storages[turn % 8]}, turn + 1);
    if (HasFailure()) return;  // a broken kernel fails everywhere: once is enough to read
  }
}

// More k steps than stages, and every step around the ring's depth.
TEST_P(GpuShapesTest, KAroundTheRing) {
  const GpuTile tile = GetParam().tile;
  const std::vector<Storage> storages = AllStorages();
  for (int64_t steps = 1; steps <= 2 * tile.stages + 1; ++steps) {
    for (int64_t extra : {-1, 0, 1}) {
      const GemmShape shape{.m = 70, .n = 66, .k = steps * tile.k + extra};
      ExpectRight(gpu(), GetParam(), shape, {storages[(steps * 3 + extra) % 8]}, 11);
    }
  }
}

TEST_P(GpuShapesTest, LongK) {
  ExpectRight(gpu(), GetParam(), {.m = 37, .n = 131, .k = 4099}, AllStorages(), 21);
  ExpectRight(gpu(), GetParam(), {.m = 3, .n = 5, .k = 70001}, {AllStorages()[0]}, 22);
}

// Many tiles, so that the raster's groups have remainders. Exact for some rows; the others are
// compared with a product of their own in GpuBitsTest.
TEST_P(GpuShapesTest, ManyTiles) {
  const GemmShape shape{.m = 4099, .n = 3203, .k = 257};
  const Operands operands(shape, 31);
  const std::vector<int64_t> rows = {0, 1, 127, 128, 2047, 2048, 3333, 4095, 4096, 4098};
  const Reference reference =
      ComputeReferenceRows(operands.a.view(), operands.b.view(), rows).value();
  const Storage storages[] = {{}, {.a_transposed = true, .b_transposed = true}};
  for (const Storage& storage : storages) {
    const GpuResult result = Multiply(operands, storage);
    Matrix some(static_cast<int64_t>(rows.size()), shape.n, DType::kFp32);
    for (size_t r = 0; r < rows.size(); ++r) {
      std::copy_n(result.d.data<float>() + rows[r] * shape.n, shape.n,
                  some.data<float>() + static_cast<int64_t>(r) * shape.n);
    }
    ExpectWithinBound({.d = std::move(some)}, reference);
  }
}

TEST_P(GpuShapesTest, VeryTallAndVeryWide) {
  ExpectRight(gpu(), GetParam(), {.m = 20011, .n = 2, .k = 3}, {AllStorages()[1]}, 41);
  ExpectRight(gpu(), GetParam(), {.m = 2, .n = 20011, .k = 3}, {AllStorages()[6]}, 42);
}

TEST_P(GpuShapesTest, AnyPitchThatTheDeviceAsksFor) {
  const int64_t pitch = gpu().device().info().pitch_alignment;
  for (Storage storage : AllStorages()) {
    storage.extra_pitch = 3 * pitch;
    ExpectRight(gpu(), GetParam(), {.m = 131, .n = 67, .k = 97}, {storage}, 51);
  }
}

TEST_P(GpuShapesTest, NoInnerDimensionGivesZeros) {
  const Operands operands({.m = 135, .n = 67, .k = 0}, 1);
  for (const Storage& storage : AllStorages()) {
    const GpuResult result = Multiply(operands, storage);
    EXPECT_EQ(result.Bits(), std::vector<uint32_t>(135 * 67, 0)) << storage.ToString();
    EXPECT_EQ(result.nonfinite, 0u);
  }
}

// With a neighbour, as a launch of nothing may be refused: the engine never asks for one.
TEST_P(GpuShapesTest, EmptyOutputsAreNotTouched) {
  if (!GetParam().grouped) GTEST_SKIP() << "this tile takes one problem a launch";
  const Operands no_rows({.m = 0, .n = 5, .k = 4}, 1);
  const Operands no_columns({.m = 5, .n = 0, .k = 4}, 1);
  const Operands some({.m = 33, .n = 17, .k = 40}, 1);
  const GpuProduct products[] = {{&no_rows, {}}, {&some, {}}, {&no_columns, {}}, {&some, {}}};
  const std::vector<GpuResult> results = gpu().Multiply(GetParam(), products);
  const Reference reference = some.MakeReference();
  ExpectWithinBound(results[1], reference);
  ExpectWithinBound(results[3], reference);
}

}  // namespace
}  // namespace tcgemm
