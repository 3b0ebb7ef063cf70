// One block's tile of D with mma.sync, whatever brings the operands to shared memory: what
// cp_async_mma.cu and tma_mma.cu have in common. Device code.
//
// PIPE is the way of the operands. pipe.Loads<A_K_MAJOR, B_K_MAJOR>(origin) gives the loads of
// one tile:
//   Start(steps)   asks for the first stages
//   Await()        asks for one stage more, then waits for the next one that the products need; its
//                  shared address, A's tile before B's
//   Release()      this warp has read that stage
// All threads call all three alike.
#ifndef TCGEMM_KERNELS_TILE_MMA_BLOCK_H_
#define TCGEMM_KERNELS_TILE_MMA_BLOCK_H_

#include <cstdint>

#include "kernels/gpu_problem.h"
#include "kernels/gpu_tiles.h"
#include "kernels/tile/fragments.h"
#include "kernels/tile/host_device.h"
#include "kernels/tile/raster.h"
#include "kernels/tile/warp_tile.h"

namespace tcgemm {

#ifdef __CUDACC__

template <GpuTile TILE, bool A_K_MAJOR, bool B_K_MAJOR, typename PIPE>
TCGEMM_DEVICE void MultiplyBlock(const PIPE& pipe, const TileProblem& problem, TilePosition origin,
                                 WarpTile<TILE>& tile) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const TilePosition mine = WarpTile<TILE>::Origin(warp);
  const uint32_t a_lane = LaneOffset<Operand::kA, A_K_MAJOR, TILE.k>(mine.row, lane);
  const uint32_t b_lane =
      TILE.m * TILE.k * 2 + LaneOffset<Operand::kB, B_K_MAJOR, TILE.k>(mine.column, lane);
  const int steps = CeilDiv(problem.k, TILE.k);
  auto loads = pipe.template Loads<A_K_MAJOR, B_K_MAJOR>(origin);
  loads.Start(steps);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const uint32_t stage = loads.Await();
    tile.template MultiplyStage<A_K_MAJOR, B_K_MAJOR>(stage + a_lane, stage + b_lane);
    loads.Release();
  }
}

template <GpuTile TILE, typename PIPE>
TCGEMM_DEVICE void ComputeBlock(const PIPE& pipe, const TileProblem& problem, TilePosition origin,
                                bool output_fp32) {
  WarpTile<TILE> tile;
  // Uniform for the block: four loops in one kernel, so that a batch may mix layouts.
  if (problem.a_transposed && problem.b_transposed) {
    MultiplyBlock<TILE, false, true>(pipe, problem, origin, tile);
  } else if (problem.a_transposed) {
    MultiplyBlock<TILE, false, false>(pipe, problem, origin, tile);
  } else if (problem.b_transposed) {
    MultiplyBlock<TILE, true, true>(pipe, problem, origin, tile);
  } else {
    MultiplyBlock<TILE, true, false>(pipe, problem, origin, tile);
  }
  tile.Store(problem, origin, static_cast<int>(threadIdx.x), output_fp32);
}

#endif  // __CUDACC__

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_MMA_BLOCK_H_
