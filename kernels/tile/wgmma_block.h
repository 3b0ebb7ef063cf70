// What a block of tma_wgmma.cu is told, how it lays out its shared memory, which tiles are its own,
// and when it lets the next launch in. Device code.
#ifndef TCGEMM_KERNELS_TILE_WGMMA_BLOCK_H_
#define TCGEMM_KERNELS_TILE_WGMMA_BLOCK_H_

#include <cstdint>

#include "kernels/gpu_problem.h"
#include "kernels/gpu_tiles.h"
#include "kernels/tile/host_device.h"
#include "kernels/tile/operand_load.h"
#include "kernels/tile/raster.h"

namespace tcgemm {

template <int PROBLEMS>
struct WgmmaParameters {
  LaunchMaps maps[PROBLEMS];
  TensorMap d_maps[PROBLEMS];
  TileProblem problems[PROBLEMS];
  int problem_count;
  int tile_count;
  bool output_fp32;
};
static_assert(sizeof(WgmmaParameters<kMaxWgmmaProblems>) <= kMaxParameterBytes);

template <GpuTile TILE>
struct SharedLayout {
  static constexpr uint32_t kABytes = TILE.m * TILE.k * 2;
  static constexpr uint32_t kEpilogueBytes = TILE.swapped ? 0 : kWgmmaEpilogueBytes / 2;
  static constexpr int kMaxStages = WgmmaStages(TILE, true);

  uint32_t base;  // shared address, 1024-byte aligned
  // Known when the kernel is compiled but for swapped tiles: WgmmaStages, WgmmaStageBytes.
  int stages;
  uint32_t stage_bytes;

  TCGEMM_DEVICE uint32_t a(int stage) const { return base + stage * stage_bytes; }
  TCGEMM_DEVICE uint32_t b(int stage) const { return a(stage) + kABytes; }
  TCGEMM_DEVICE uint32_t epilogue(int consumer) const {
    constexpr uint32_t kRingBytes = TILE.stages * TILE.stage_bytes();
    return base + kRingBytes + consumer * kEpilogueBytes;
  }
  TCGEMM_DEVICE uint32_t full(int stage) const { return epilogue(2) + stage * 8; }
  TCGEMM_DEVICE uint32_t empty(int stage) const { return full(kMaxStages + stage); }
};

#ifdef __CUDACC__

// The tiles of one block, in order: every cluster takes the next one after all others have theirs.
template <GpuTile TILE, int PROBLEMS>
struct Walk {
  const WgmmaParameters<PROBLEMS>& parameters;
  int tile = static_cast<int>(blockIdx.x) / TILE.blocks();

  TCGEMM_DEVICE static int Step() { return static_cast<int>(gridDim.x) / TILE.blocks(); }
  TCGEMM_DEVICE bool AtEnd() const { return tile >= parameters.tile_count; }
  TCGEMM_DEVICE bool AtFirst() const { return tile < Step(); }
  TCGEMM_DEVICE bool AtLast() const { return tile >= parameters.tile_count - Step(); }
  TCGEMM_DEVICE void Advance() { tile += Step(); }
  TCGEMM_DEVICE int Problem() const {
    return PROBLEMS == 1 ? 0 : FindProblem(parameters.problems, parameters.problem_count, tile);
  }
  // Top left of this block's tile.
  TCGEMM_DEVICE TilePosition Origin(const TileProblem& problem, ClusterPlace<TILE> place) const {
    constexpr int kRows = TILE.m * TILE.cluster;
    constexpr int kColumns = TILE.n * TILE.cluster_n;
    const TilePosition position =
        RasterTile(tile - problem.first_tile, CeilDiv(problem.m, kRows),
                   CeilDiv(problem.n, kColumns), kRasterGroupRows / kRows);
    return {WithinSize(position.row, kRows, problem.m) + place.Row() * TILE.m,
            WithinSize(position.column, kColumns, problem.n) + place.Column() * TILE.n};
  }
};

// When the launch behind this one may move in, beside this one's blocks. Few rows wait for memory:
// there blocks that wait in turn, and fetch ahead, gain where blocks have several tiles each, or
// come when all is loaded; a launch of one short tile a block is 12 % faster without (H200).
enum class LetIn { kAtOnce, kLoading, kLoaded };
constexpr int kLongK = 8192;

template <GpuTile TILE, int PROBLEMS>
TCGEMM_DEVICE LetIn WhenToLetIn(const WgmmaParameters<PROBLEMS>& parameters) {
  if (!TILE.swapped || parameters.tile_count > Walk<TILE, PROBLEMS>::Step()) return LetIn::kAtOnce;
  return parameters.problems[0].k < kLongK ? LetIn::kLoading : LetIn::kLoaded;
}

#endif  // __CUDACC__

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_WGMMA_BLOCK_H_
