// In which order the tiles of D are computed.
//
// Blocks start in the order of their index. A wave of them that covers a square-ish region of D
// shares the most operand rows and columns, which then come from the L2 cache: row by row, a wave
// over a wide D would read all of B for a few rows of A. So tiles go in groups of some tile rows,
// down the columns within a group.
#ifndef TCGEMM_KERNELS_TILE_RASTER_H_
#define TCGEMM_KERNELS_TILE_RASTER_H_

#include <cstdint>

#include "kernels/gpu_problem.h"
#include "kernels/gpu_tiles.h"
#include "kernels/tile/host_device.h"

namespace tcgemm {

// Rows of D in a group: about the square root of what the 132 to 264 blocks of a wave cover.
inline constexpr int kRasterGroupRows = 2048;

struct TilePosition {
  int row = 0;     // in tiles
  int column = 0;  // in tiles
};

TCGEMM_HD constexpr int CeilDiv(int a, int b) { return a / b + (a % b != 0 ? 1 : 0); }

// The place of tile `index` among rows × columns of them. A bijection.
TCGEMM_HD constexpr TilePosition RasterTile(int index, int rows, int columns, int group_rows) {
  // Not more than all tiles, which are int32; a division of 64 bits is some hundred instructions.
  const int group_tiles = (rows < group_rows ? rows : group_rows) * columns;
  const int first_row = index / group_tiles * group_rows;
  const int in_group = index % group_tiles;
  const int height = rows - first_row < group_rows ? rows - first_row : group_rows;
  return {first_row + in_group % height, in_group / height};
}

// Where a tile of `extent` rows (or columns) starts: the last one ends near the end of the matrix
// and computes some of its neighbour's again, to the same bits. The copy engine fills rows beyond
// the matrix one by one, 2.4 ns each (H200): a tile that is half outside took 1.8 times as long. In
// multiples of 8, as copies along a row need, so that up to 7 stay outside.
TCGEMM_HD constexpr int WithinSize(int tile, int extent, int size) {
  const int last = size <= extent ? 0 : CeilDiv(size - extent, 8) * 8;
  const int start = tile * extent;
  return start < last ? start : last;
}

// The problem that tile `index` of the launch belongs to: the last one whose first_tile is not
// above it. Problems without tiles (an empty D) share their first_tile with the next one.
template <typename PROBLEM>
TCGEMM_HD int FindProblem(const PROBLEM* problems, int count, int index) {
  int low = 0;
  int high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (problems[middle].first_tile <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Top left element of the tile in D.
template <GpuTile TILE>
TCGEMM_HD TilePosition TileOrigin(const TileProblem& problem, int index) {
  constexpr int kGroup = kRasterGroupRows / TILE.m;
  const TilePosition tile = RasterTile(index - problem.first_tile, CeilDiv(problem.m, TILE.m),
                                       CeilDiv(problem.n, TILE.n), kGroup);
  return {tile.row * TILE.m, tile.column * TILE.n};
}

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_RASTER_H_
