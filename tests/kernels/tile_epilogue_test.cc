// The epilogue on accumulators as the threads of each tile hold them, on the host: each element of
// D gets what its place in C and in the bias says, and nothing outside them is read.
#include "kernels/tile/tile_epilogue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/gpu_tiles.h"
#include "kernels/tile/element_epilogue.h"
#include "kernels/tile/epilogue.h"
#include "kernels/tile/warp_tile.h"
#include "kernels/tile/wgmma_store.h"
#include "tests/kernels/epilogue_data.h"

namespace tcgemm {
namespace {

// A D of one tile and a bit more in each direction, what is added to it, and what must come out.
struct Expected {
  Expected(const EpilogueCase& epilogue_case, const EpilogueShape& the_shape)
      : shape(the_shape),
        data(epilogue_case, shape, /*gap=*/shape.n % 2 == 0 ? 2 : 1, 3),
        sums(shape.m, shape.n, DType::kFp32) {
    FillNormal(sums, 1);
    const auto* first = sums.data<uint32_t>();
    bits = ForetellBits({first, first + shape.m * shape.n}, data.View(), shape, DType::kFp32);
  }

  // As cuda_launch.cc fills it in; `swapped` exchanges m and n alone.
  TileProblem Problem(bool swapped) const {
    const Epilogue epilogue = data.View();
    TileProblem problem;
    problem.has_epilogue = true;
    problem.alpha = epilogue.alpha;
    problem.activation = epilogue.activation;
    if (epilogue.reads_c()) {
      problem.c = epilogue.c.data;
      problem.ldc = static_cast<uint32_t>(epilogue.c.ld);
      problem.c_fp32 = epilogue.c.dtype == DType::kFp32;
      problem.beta = epilogue.beta;
    }
    if (epilogue.has_bias()) {
      problem.bias = epilogue.bias.data;
      problem.bias_fp32 = epilogue.bias.dtype == DType::kFp32;
      const bool column = BiasIsColumn(epilogue.bias, shape);
      problem.bias_row_stride = column ? static_cast<uint32_t>(epilogue.bias.ld) : 0;
      problem.bias_column_stride = column ? 0 : 1;
    }
    problem.m = static_cast<int>(swapped ? shape.n : shape.m);
    problem.n = static_cast<int>(swapped ? shape.m : shape.n);
    return problem;
  }
  bool Contains(int64_t row, int64_t column) const { return row < shape.m && column < shape.n; }
  float Sum(int64_t row, int64_t column) const {
    const bool counts = Contains(row, column) && data.epilogue_case.alpha != 0;
    return counts ? sums.data<float>()[row * shape.n + column] : 0;
  }

  EpilogueShape shape;
  EpilogueData data;
  Matrix sums;
  std::vector<uint32_t> bits;
};

// The place in D of accumulator i, by the words of ptx/mma.h and ptx/wgmma.h.
template <FragmentLayout LAYOUT>
TilePosition PlaceOf(TilePosition first, int i) {
  const int block = i / 4;
  const int row = first.row + block / LAYOUT.column_blocks * LAYOUT.row_step + (i % 4 < 2 ? 0 : 8);
  const int column = first.column + block % LAYOUT.column_blocks * 8 + i % 2;
  return LAYOUT.swapped ? TilePosition{column, row} : TilePosition{row, column};
}

// One thread's accumulators; marks the elements that they are in `seen`.
template <FragmentLayout LAYOUT, int COUNT>
void CheckThread(const Expected& expected, TilePosition first, std::vector<int>& seen) {
  float d[COUNT];
  for (int i = 0; i < COUNT; ++i) {
    const TilePosition at = PlaceOf<LAYOUT>(first, i);
    d[i] = expected.Sum(at.row, at.column);
  }
  ApplyEpilogue<LAYOUT>(expected.Problem(LAYOUT.swapped), first, d);
  for (int i = 0; i < COUNT; ++i) {
    const TilePosition at = PlaceOf<LAYOUT>(first, i);
    if (!expected.Contains(at.row, at.column)) continue;
    const int64_t index = at.row * expected.shape.n + at.column;
    ASSERT_EQ(Fp32Output(d[i]), expected.bits[index]) << at.row << "," << at.column;
    ++seen[index];
  }
}

void ExpectEachOnce(const Expected& expected, const std::vector<int>& seen, int rows, int columns) {
  for (int64_t i = 0; i < expected.shape.m; ++i) {
    for (int64_t j = 0; j < expected.shape.n; ++j) {
      ASSERT_EQ(seen[i * expected.shape.n + j], i < rows && j < columns ? 1 : 0) << i << "," << j;
    }
  }
}

template <size_t ENTRY>
void CheckWgmmaTile(const EpilogueCase& epilogue_case) {
  constexpr GpuTile kTile = kWgmmaTiles[ENTRY].tile;
  constexpr int kBlocks = kTile.m / WgmmaConsumers(kTile) / 64;
  const int rows = kTile.swapped ? kTile.n : kTile.m;
  const int columns = kTile.swapped ? kTile.m : kTile.n;
  // The edge of D in the tile, and beyond it.
  for (const int extra : {-3, 5}) {
    const Expected expected(epilogue_case, {.m = rows + extra, .n = columns - extra});
    std::vector<int> seen(expected.bits.size());
    for (int group = 0; group < WgmmaConsumers(kTile); ++group) {
      for (int thread = 0; thread < kWarpgroup; ++thread) {
        CheckThread<WgmmaLayout(kTile), kBlocks * kTile.n / 2>(
            expected, WgmmaPlace<kTile>({0, 0}, group, thread), seen);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
    ExpectEachOnce(expected, seen, rows, columns);
  }
}

template <size_t... ENTRY>
void CheckWgmmaTiles(const EpilogueCase& epilogue_case, std::index_sequence<ENTRY...>) {
  (CheckWgmmaTile<ENTRY>(epilogue_case), ...);
}

TEST(TileEpilogueTest, EveryKindOnEveryWgmmaTile) {
  for (const EpilogueCase& epilogue_case : EpilogueCases()) {
    SCOPED_TRACE(epilogue_case.ToString());
    CheckWgmmaTiles(epilogue_case, std::make_index_sequence<kWgmmaTiles.size()>());
    if (HasFatalFailure()) return;
  }
}

// WarpTile's own way out, epilogue and stores, for D in both types; guards around D.
template <size_t ENTRY>
void CheckWarpTile(const EpilogueCase& epilogue_case, DType output) {
  constexpr GpuTile kTile = kGpuTiles[ENTRY].tile;
  const EpilogueShape shape = {.m = kTile.m - 3, .n = kTile.n - 5};
  Expected expected(epilogue_case, shape);
  TileProblem problem = expected.Problem(false);
  Matrix d(kTile.m + 8, kTile.n + 8, output);
  FillBytes(d, 0xff);
  uint32_t nonfinite = 0;
  problem.d = d.data<char>();
  problem.ldd = static_cast<uint32_t>(d.ld());
  problem.nonfinite = &nonfinite;
  for (int thread = 0; thread < kTile.threads(); ++thread) {
    WarpTile<kTile> tile;
    const TilePosition warp = WarpTile<kTile>::Origin(thread / 32);
    const int lane = thread % 32;
    constexpr int kCount = sizeof(tile.d) / sizeof(float);
    auto& flat = reinterpret_cast<float(&)[kCount]>(tile.d);
    constexpr FragmentLayout kLayout = {.column_blocks = WarpTile<kTile>::kBlocksN * 2,
                                        .row_step = 16};
    for (int i = 0; i < kCount; ++i) {
      const TilePosition at =
          PlaceOf<kLayout>({warp.row + lane / 4, warp.column + lane % 4 * 2}, i);
      flat[i] = expected.Sum(at.row, at.column);
    }
    tile.Store(problem, {0, 0}, thread, output == DType::kFp32);
  }
  EXPECT_EQ(nonfinite, 0u);
  const std::vector<uint32_t> bits = ForetellBits(
      {expected.sums.data<uint32_t>(), expected.sums.data<uint32_t>() + shape.m * shape.n},
      expected.data.View(), shape, output);
  const size_t size = DTypeSize(output);
  for (int64_t i = 0; i < d.rows(); ++i) {
    for (int64_t j = 0; j < d.cols(); ++j) {
      uint32_t value = 0;
      std::memcpy(&value, d.data<char>() + (i * d.ld() + j) * size, size);
      const uint32_t guard = output == DType::kFp32 ? 0xffffffffu : 0xffffu;
      const bool inside = i < shape.m && j < shape.n;
      ASSERT_EQ(value, inside ? bits[i * shape.n + j] : guard) << i << "," << j;
    }
  }
}

template <size_t... ENTRY>
void CheckWarpTiles(const EpilogueCase& epilogue_case, DType output,
                    std::index_sequence<ENTRY...>) {
  (CheckWarpTile<ENTRY>(epilogue_case, output), ...);
}

TEST(TileEpilogueTest, EveryKindOnEveryMmaTile) {
  for (const EpilogueCase& epilogue_case : EpilogueCases()) {
    for (const DType output : {DType::kBf16, DType::kFp32}) {
      SCOPED_TRACE(epilogue_case.ToString());
      CheckWarpTiles(epilogue_case, output, std::make_index_sequence<kGpuTiles.size()>());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TileEpilogueTest, OneElementAtATime) {
  for (const EpilogueCase& epilogue_case : EpilogueCases()) {
    const Expected expected(epilogue_case, {.m = 6, .n = 7});
    const TileProblem problem = expected.Problem(false);
    for (int i = 0; i < 6; ++i) {
      for (int j = 0; j < 7; ++j) {
        ASSERT_EQ(Fp32Output(ApplyEpilogueAt(problem, {i, j}, expected.Sum(i, j))),
                  expected.bits[i * 7 + j])
            << epilogue_case.ToString();
      }
    }
  }
}

TEST(LoadAddendsTest, ReadsNoFurtherThanItMay) {
  const float fp32[2] = {1.5f, -2};
  const uint16_t bf16[2] = {0x3fc0, 0xc000};
  for (const bool is_fp32 : {false, true}) {
    const void* const base = is_fp32 ? static_cast<const void*>(fp32) : bf16;
    float pair[2] = {9, 9};
    LoadAddends(nullptr, 0, 0, is_fp32, pair);
    EXPECT_EQ(pair[0], 0);
    LoadAddends(base, 0, 1, is_fp32, pair);
    EXPECT_EQ(pair[0], 1.5f);
    EXPECT_EQ(pair[1], 0);
    LoadAddends(base, 0, 2, is_fp32, pair);
    EXPECT_EQ(pair[0], 1.5f);
    EXPECT_EQ(pair[1], -2);
  }
}

}  // namespace
}  // namespace tcgemm
