// alpha, C, bias and activation on the sums that a thread holds, in place, before they are stored;
// in the operations of element_epilogue.h, so that all kernels give the same bits.
//
// A loop over a thread's 128 accumulators must not index them: registers have no addresses. Written
// out for each, the steps would be some 10,000 instructions a kernel. So a few of them are worked
// on at a time, always the same registers, and the others move up: a move an element and turn.
#ifndef TCGEMM_KERNELS_TILE_TILE_EPILOGUE_H_
#define TCGEMM_KERNELS_TILE_TILE_EPILOGUE_H_

#include <cstdint>

#include "kernels/gpu_problem.h"
#include "kernels/tile/activation.h"
#include "kernels/tile/host_device.h"
#include "kernels/tile/raster.h"

namespace tcgemm {

// Which elements of a tile a thread's accumulators are: blocks of four, as mma.h and wgmma.h lay
// them out. The first two are neighbours of a row, the others lie 8 rows below; the next block lies
// 8 columns further, and after column_blocks of them row_step rows below the first one. With
// swapped operands rows of the tile are columns of D.
struct FragmentLayout {
  int column_blocks = 1;
  int row_step = 16;
  bool swapped = false;
};

// c or bias at `index`, exactly as fp32.
TCGEMM_HD float LoadAddend(const void* base, int64_t index, bool fp32) {
  if (fp32) return static_cast<const float*>(base)[index];
  return FloatOf(static_cast<uint32_t>(static_cast<const uint16_t*>(base)[index]) << 16);
}

// The same at `index`, which is even, and behind it, as far as `count` (0 to 2) says. The base is
// aligned to two elements.
TCGEMM_HD void LoadAddends(const void* base, int64_t index, int count, bool fp32,
                           float (&pair)[2]) {
  pair[0] = pair[1] = 0;
  if (count == 0) return;
  if (count == 1) {
    pair[0] = LoadAddend(base, index, fp32);
  } else if (fp32) {
    const uint64_t both =
        *reinterpret_cast<const uint64_t*>(static_cast<const float*>(base) + index);
    pair[0] = FloatOf(static_cast<uint32_t>(both));
    pair[1] = FloatOf(static_cast<uint32_t>(both >> 32));
  } else {
    const uint32_t both =
        *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(base) + index);
    pair[0] = FloatOf(both << 16);
    pair[1] = FloatOf(both & 0xffff0000u);
  }
}

// One turn: BLOCKS blocks of a thread, from `first` of the tile's coordinates in D on.
template <FragmentLayout LAYOUT, int BLOCKS>
struct EpilogueTurn {
  static constexpr int kCount = 4 * BLOCKS;
  const TileProblem& problem;
  TilePosition first;

  // Of accumulator i, in the tile's coordinates.
  TCGEMM_DEVICE int Row(int i) const { return first.row + i % 4 / 2 * 8; }
  TCGEMM_DEVICE int Column(int i) const { return first.column + i / 4 * 8 + i % 2; }
  TCGEMM_DEVICE bool IsInside(int i) const { return Row(i) < problem.m && Column(i) < problem.n; }
  TCGEMM_DEVICE TilePosition PlaceInD(int i) const {
    return LAYOUT.swapped ? TilePosition{Column(i), Row(i)} : TilePosition{Row(i), Column(i)};
  }
  TCGEMM_DEVICE int64_t IndexInC(int i) const {
    return static_cast<int64_t>(PlaceInD(i).row) * problem.ldc + PlaceInD(i).column;
  }

  TCGEMM_DEVICE void AddC(float (&d)[kCount]) const {
    float c[kCount];
    TCGEMM_UNROLL
    for (int i = 0; i < kCount; i += 2) {
      if constexpr (LAYOUT.swapped) {
        c[i] = IsInside(i) ? LoadAddend(problem.c, IndexInC(i), problem.c_fp32) : 0;
        c[i + 1] = IsInside(i + 1) ? LoadAddend(problem.c, IndexInC(i + 1), problem.c_fp32) : 0;
      } else {
        const int count = IsInside(i) ? 1 + IsInside(i + 1) : 0;
        float pair[2];
        LoadAddends(problem.c, IndexInC(i), count, problem.c_fp32, pair);
        c[i] = pair[0];
        c[i + 1] = pair[1];
      }
    }
    TCGEMM_UNROLL
    for (int i = 0; i < kCount; ++i) d[i] = AddRn(d[i], MultiplyRn(problem.beta, c[i]));
  }

  TCGEMM_DEVICE void AddBias(float (&d)[kCount]) const {
    float bias[kCount];
    TCGEMM_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const int64_t index = static_cast<int64_t>(PlaceInD(i).row) * problem.bias_row_stride +
                            static_cast<int64_t>(PlaceInD(i).column) * problem.bias_column_stride;
      bias[i] = IsInside(i) ? LoadAddend(problem.bias, index, problem.bias_fp32) : 0;
    }
    TCGEMM_UNROLL
    for (int i = 0; i < kCount; ++i) d[i] = AddRn(d[i], bias[i]);
  }

  template <float (*F)(float)>
  TCGEMM_DEVICE static void Map(float (&d)[kCount]) {
    TCGEMM_UNROLL
    for (int i = 0; i < kCount; ++i) d[i] = F(d[i]);
  }

  TCGEMM_DEVICE void Run(float (&d)[kCount]) const {
    TCGEMM_UNROLL
    for (int i = 0; i < kCount; ++i) d[i] = MultiplyRn(problem.alpha, d[i]);
    // Uniform branches: the problem is the whole tile's.
    if (problem.c != nullptr) AddC(d);
    if (problem.bias != nullptr) AddBias(d);
    if (problem.activation == Activation::kRelu) {
      Map<Relu>(d);
    } else if (problem.activation == Activation::kGelu) {
      Map<Gelu>(d);
    } else if (problem.activation == Activation::kSilu) {
      Map<Silu>(d);
    }
  }
};

// Blocks in a turn: up to four, which is enough loads under way at once and few enough
// instructions, and as many as divide a row of blocks.
constexpr int EpilogueTurnBlocks(int column_blocks, int accumulators) {
  int blocks = accumulators > 160 ? 1 : 4;
  while (column_blocks % blocks != 0) --blocks;
  return blocks;
}

// All accumulators of a thread. `first` is where d[0] lies, in the tile's coordinates: a row and a
// column of D, or, swapped, a column and a row.
template <FragmentLayout LAYOUT, int COUNT>
TCGEMM_DEVICE void ApplyEpilogue(const TileProblem& problem, TilePosition first,
                                 float (&d)[COUNT]) {
  constexpr int kBlocks = COUNT / 4;
  constexpr int kTurn = EpilogueTurnBlocks(LAYOUT.column_blocks, COUNT);
  constexpr int kTaken = 4 * kTurn;
  static_assert(COUNT % kTaken == 0 && LAYOUT.column_blocks % kTurn == 0);
  TCGEMM_NO_UNROLL
  for (int block = 0; block < kBlocks; block += kTurn) {
    const TilePosition at = {first.row + block / LAYOUT.column_blocks * LAYOUT.row_step,
                             first.column + block % LAYOUT.column_blocks * 8};
    float taken[kTaken];
    TCGEMM_UNROLL
    for (int i = 0; i < kTaken; ++i) taken[i] = d[i];
    EpilogueTurn<LAYOUT, kTurn>{problem, at}.Run(taken);
    // After the last turn all are where they were.
    TCGEMM_UNROLL
    for (int i = 0; i < COUNT - kTaken; ++i) d[i] = d[i + kTaken];
    TCGEMM_UNROLL
    for (int i = 0; i < kTaken; ++i) d[COUNT - kTaken + i] = taken[i];
  }
}

// One element, at `place` inside D: for simt, whose threads hold theirs apart.
TCGEMM_DEVICE float ApplyEpilogueAt(const TileProblem& problem, TilePosition place, float sum) {
  float value = MultiplyRn(problem.alpha, sum);
  if (problem.c != nullptr) {
    const int64_t index = static_cast<int64_t>(place.row) * problem.ldc + place.column;
    const float c = LoadAddend(problem.c, index, problem.c_fp32);
    value = AddRn(value, MultiplyRn(problem.beta, c));
  }
  if (problem.bias != nullptr) {
    const int64_t index = static_cast<int64_t>(place.row) * problem.bias_row_stride +
                          static_cast<int64_t>(place.column) * problem.bias_column_stride;
    value = AddRn(value, LoadAddend(problem.bias, index, problem.bias_fp32));
  }
  return Activate(problem.activation, value);
}

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_TILE_EPILOGUE_H_
