// One warp's part of a tile of D: its accumulators, the products of one stage, the way to memory.
//
// The order of the sums is the promise of docs/ARCHITECTURE.md: one zeroed accumulator an element,
// k16 blocks in ascending K, each one mma.m16n8k16. It is this file's for every kernel that uses
// it, whatever the tile.
#ifndef TCGEMM_KERNELS_TILE_WARP_TILE_H_
#define TCGEMM_KERNELS_TILE_WARP_TILE_H_

#include <cstdint>

#include "kernels/gpu_problem.h"
#include "kernels/gpu_tiles.h"
#include "kernels/ptx/mma.h"
#include "kernels/tile/fragments.h"
#include "kernels/tile/host_device.h"
#include "kernels/tile/raster.h"
#include "kernels/tile/store.h"
#include "kernels/tile/tile_epilogue.h"

namespace tcgemm {

template <GpuTile TILE>
struct WarpTile {
  static constexpr int kRows = TILE.m / TILE.warps_m;
  static constexpr int kColumns = TILE.n / TILE.warps_n;
  static constexpr int kBlocksM = kRows / 16;
  static constexpr int kBlocksN = kColumns / 16;
  // An MN-major block must stay inside a box: see BlockOffset.
  static_assert((kRows == 32 || kRows == 64) && (kColumns == 32 || kColumns == 64));

  // Top left of the warp's part, in the tile.
  TCGEMM_HD static constexpr TilePosition Origin(int warp) {
    return {warp / TILE.warps_n * kRows, warp % TILE.warps_n * kColumns};
  }

  float d[kBlocksM][kBlocksN * 2][4] = {};

  // One stage: TILE.k of K. The addresses are of the lane's rows in the two tiles (LaneOffset).
  template <bool A_K_MAJOR, bool B_K_MAJOR>
  TCGEMM_DEVICE void MultiplyStage(uint32_t a_lane, uint32_t b_lane);

  // Applies the problem's epilogue, if it has one, and writes the part that lies inside D, and
  // problem.nonfinite. `origin` is the tile's, in D.
  TCGEMM_DEVICE void Store(const TileProblem& problem, TilePosition origin, int thread,
                           bool output_fp32);

 private:
  static constexpr int kAccumulators = kBlocksM * kBlocksN * 2 * 4;
  static constexpr FragmentLayout kLayout = {.column_blocks = kBlocksN * 2, .row_step = 16};

  template <bool FP32>
  TCGEMM_DEVICE bool StoreAs(const TileProblem& problem, int row, int column) const;
};

// ---- Implementation ----

template <GpuTile TILE>
template <bool A_K_MAJOR, bool B_K_MAJOR>
TCGEMM_DEVICE void WarpTile<TILE>::MultiplyStage(uint32_t a_lane, uint32_t b_lane) {
  TCGEMM_UNROLL
  for (int step = 0; step < TILE.k / 16; ++step) {
    uint32_t a[kBlocksM][4];
    uint32_t b[kBlocksN][4];
    TCGEMM_UNROLL
    for (int i = 0; i < kBlocksM; ++i) LoadBlock<A_K_MAJOR, TILE.k>(a[i], a_lane, i, step);
    TCGEMM_UNROLL
    for (int j = 0; j < kBlocksN; ++j) LoadBlock<B_K_MAJOR, TILE.k>(b[j], b_lane, j, step);
    TCGEMM_UNROLL
    for (int i = 0; i < kBlocksM; ++i) {
      TCGEMM_UNROLL
      for (int j = 0; j < kBlocksN; ++j) {
        ptx::MmaBf16M16N8K16(d[i][2 * j], a[i], b[j][0], b[j][1]);
        ptx::MmaBf16M16N8K16(d[i][2 * j + 1], a[i], b[j][2], b[j][3]);
      }
    }
  }
}

template <GpuTile TILE>
template <bool FP32>
TCGEMM_DEVICE bool WarpTile<TILE>::StoreAs(const TileProblem& problem, int row, int column) const {
  bool nonfinite = false;
  TCGEMM_UNROLL
  for (int i = 0; i < kBlocksM; ++i) {
    TCGEMM_UNROLL
    for (int j = 0; j < kBlocksN * 2; ++j) {
      const float* pairs = d[i][j];
      const int top = row + i * 16;
      const int left = column + j * 8;
      nonfinite |= StorePair<FP32>(problem, top, left, pairs[0], pairs[1]);
      nonfinite |= StorePair<FP32>(problem, top + 8, left, pairs[2], pairs[3]);
    }
  }
  return nonfinite;
}

template <GpuTile TILE>
TCGEMM_DEVICE void WarpTile<TILE>::Store(const TileProblem& problem, TilePosition origin,
                                         int thread, bool output_fp32) {
  const TilePosition warp = Origin(thread / 32);
  const int lane = thread % 32;
  const int row = origin.row + warp.row + lane / 4;
  const int column = origin.column + warp.column + lane % 4 * 2;
  if (problem.has_epilogue) {
    ApplyEpilogue<kLayout>(problem, {row, column}, reinterpret_cast<float(&)[kAccumulators]>(d));
  }
  const bool nonfinite =
      output_fp32 ? StoreAs<true>(problem, row, column) : StoreAs<false>(problem, row, column);
  // Many threads may write the same 1.
  if (nonfinite && problem.nonfinite != nullptr) *problem.nonfinite = 1;
}

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_WARP_TILE_H_
