// The way out of tma_wgmma: a warpgroup's accumulators to D. Device code.
//
// A slice of 64 rows at a time goes through 16 KiB of shared memory, two boxes of 128 bytes by 64
// rows as TMA's swizzle has them, and one thread asks TMA to store it: whole lines of memory, while
// the warpgroup goes on. TMA writes whole 16-byte pieces and clips at the right edge only to those;
// and swapped operands leave Dᵀ in the registers: both go to memory element by element. An epilogue
// is applied in the registers, before any of them.
#ifndef TCGEMM_KERNELS_TILE_WGMMA_STORE_H_
#define TCGEMM_KERNELS_TILE_WGMMA_STORE_H_

#include <cstdint>

#include "kernels/gpu_problem.h"
#include "kernels/gpu_tiles.h"
#include "kernels/ptx/stmatrix.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/tile/epilogue.h"
#include "kernels/tile/host_device.h"
#include "kernels/tile/raster.h"
#include "kernels/tile/store.h"
#include "kernels/tile/swizzle.h"
#include "kernels/tile/tile_epilogue.h"

namespace tcgemm {

inline constexpr int kWarpgroup = 128;  // threads

// Warpgroups that share a tile.
constexpr int WgmmaConsumers(const GpuTile& tile) { return tile.warps_m / 4; }

// A warpgroup's part of a tile: blocks of 64 rows, each as ptx/wgmma.h lays it out.
template <GpuTile TILE>
using WgmmaAccumulators = float[TILE.m / WgmmaConsumers(TILE) / 64][TILE.n / 2];

constexpr FragmentLayout WgmmaLayout(const GpuTile& tile) {
  return {.column_blocks = tile.n / 8, .row_step = 64, .swapped = tile.swapped};
}

// Where the thread's first accumulator lies, in the coordinates of the tile at `origin`.
template <GpuTile TILE>
TCGEMM_HD TilePosition WgmmaPlace(TilePosition origin, int warpgroup, int thread) {
  const int lane = thread % 32;
  const int row = warpgroup * (TILE.m / WgmmaConsumers(TILE)) + thread / 32 * 16 + lane / 4;
  return {origin.row + row, origin.column + lane % 4 * 2};
}

#ifdef __CUDACC__

template <GpuTile TILE>
struct WgmmaStore {
  static constexpr int kRows = TILE.m / WgmmaConsumers(TILE);
  static constexpr int kBlocks = kRows / 64;
  using Accumulators = WgmmaAccumulators<TILE>;

  uint32_t buffer;  // shared address of the warpgroup's 16 KiB
  int barrier;      // the warpgroup's own, 1 or 2
  int index;        // of the warpgroup among those of its tile
  int thread;       // in it

  TCGEMM_DEVICE void Sync() const { ptx::NamedBarrier(barrier, kWarpgroup); }

  // Columns of a slice: 128 bf16 or 64 fp32.
  template <bool FP32>
  static constexpr int kSliceColumns = FP32 ? 64 : 128;
  template <bool FP32>
  static constexpr int kSlices = TILE.n / kSliceColumns<FP32> + (TILE.n % kSliceColumns<FP32> != 0);
  static constexpr uint32_t kBoxBytes = 64 * 128;
  // The last slice is one box or two, as narrow as may be, and ends with the tile: of a tile that
  // is not whole boxes it stores some columns a second time.
  template <bool FP32>
  static constexpr int kLastColumns = (TILE.n - 1) % kSliceColumns<FP32> < kSliceColumns<FP32> / 2
                                          ? kSliceColumns<FP32> / 2
                                          : kSliceColumns<FP32>;

  // True when a NaN or an Inf is among the columns.
  TCGEMM_DEVICE bool WriteSliceBf16(const float* d, int columns) const {
    const int lane = thread % 32;
    const int row = thread / 32 * 16 + lane % 16;
    bool nonfinite = false;
#pragma unroll
    for (int column = 0; column < 128; column += 16) {
      if (column >= columns) break;
      const float* at = d + column / 2;
      const uint32_t pairs[4] = {
          PackBf16(at[0], at[1], nonfinite), PackBf16(at[2], at[3], nonfinite),
          PackBf16(at[4], at[5], nonfinite), PackBf16(at[6], at[7], nonfinite)};
      const uint32_t box = buffer + column / 64 * kBoxBytes;
      ptx::Stmatrix4(box + SwizzledOffset<128>(row, column % 64 / 8 + lane / 16), pairs);
    }
    return nonfinite;
  }

  TCGEMM_DEVICE bool WriteSliceFp32(const float* d, int columns) const {
    const int lane = thread % 32;
    bool nonfinite = false;
#pragma unroll
    for (int column = 0; column < 64; column += 8) {
      if (column >= columns) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* at = d + column / 2 + half * 2;
        const uint32_t bits[2] = {Fp32Output(at[0]), Fp32Output(at[1])};
        nonfinite |= IsNonfiniteFp32(bits[0]) || IsNonfiniteFp32(bits[1]);
        const int row = thread / 32 * 16 + half * 8 + lane / 4;
        const int byte = column % 32 * 4 + lane % 4 * 8;
        const uint32_t to =
            buffer + column / 32 * kBoxBytes + SwizzledOffset<128>(row, byte / 16) + byte % 16;
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(bits[0]), "r"(bits[1])
                     : "memory");
      }
    }
    return nonfinite;
  }

  // TMA writes whole 16-byte pieces: where D's last column is not at the end of one, it would write
  // into the gap behind it.
  template <bool FP32>
  static TCGEMM_DEVICE bool IsRagged(const TileProblem& problem, TilePosition origin) {
    return origin.column + TILE.n > problem.n && problem.n % (FP32 ? 4 : 8) != 0;
  }

  template <bool FP32>
  TCGEMM_DEVICE bool StoreRagged(const Accumulators& d, const TileProblem& problem,
                                 TilePosition origin) const {
    const auto [row, column] = WgmmaPlace<TILE>(origin, index, thread);
    bool nonfinite = false;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < TILE.n / 8; ++i) {
        const float* at = &d[block][i * 4];
        const int top = row + block * 64;
        nonfinite |= StorePair<FP32>(problem, top, column + i * 8, at[0], at[1]);
        nonfinite |= StorePair<FP32>(problem, top + 8, column + i * 8, at[2], at[3]);
      }
    }
    return nonfinite;
  }

  // With swapped operands the tile is of Dᵀ: neighbouring lanes hold neighbours of a row of D. Only
  // few rows of D are worth swapping, so the way out is short.
  template <bool FP32>
  TCGEMM_DEVICE bool StoreSwapped(const Accumulators& d, const TileProblem& problem,
                                  TilePosition origin) const {
    const auto [column, row] = WgmmaPlace<TILE>(origin, index, thread);
    bool nonfinite = false;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < TILE.n / 2; ++i) {
        nonfinite |= StoreElement<FP32>(problem, row + i / 4 * 8 + i % 2,
                                        column + block * 64 + i / 2 % 2 * 8, d[block][i]);
      }
    }
    return nonfinite;
  }

  TCGEMM_DEVICE void Finish(Accumulators& d, const TileProblem& problem,
                            TilePosition origin) const {
    constexpr int kAccumulators = kBlocks * TILE.n / 2;
    constexpr FragmentLayout kLayout = WgmmaLayout(TILE);
    ApplyEpilogue<kLayout>(problem, WgmmaPlace<TILE>(origin, index, thread),
                           reinterpret_cast<float(&)[kAccumulators]>(d));
  }

  template <bool FP32>
  TCGEMM_DEVICE bool Store(const Accumulators& d, const TileProblem& problem, const TensorMap& map,
                           TilePosition origin) const {
    constexpr int kColumns = kSliceColumns<FP32>;
    constexpr int kBoxColumns = kColumns / 2;
    if constexpr (TILE.swapped) return StoreSwapped<FP32>(d, problem, origin);
    if (IsRagged<FP32>(problem, origin)) return StoreRagged<FP32>(d, problem, origin);
    bool nonfinite = false;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int slice = 0; slice < kSlices<FP32>; ++slice) {
        const int columns = slice + 1 < kSlices<FP32> ? kColumns : kLastColumns<FP32>;
        const int first = slice + 1 < kSlices<FP32> ? slice * kColumns : TILE.n - columns;
        const float* part = &d[block][first / 2];
        // The last slice has been read out of shared memory.
        if (thread == 0) ptx::TmaStoreWaitRead<0>();
        Sync();
        nonfinite |= FP32 ? WriteSliceFp32(part, columns) : WriteSliceBf16(part, columns);
        ptx::FenceAsyncShared();
        Sync();
        if (thread != 0) continue;
        const int row = origin.row + (index * kBlocks + block) * 64;
        for (int box = 0; box * kBoxColumns < columns; ++box) {
          const int column = origin.column + first + box * kBoxColumns;
          if (row < problem.m && column < problem.n) {
            ptx::TmaStore2d(&map, {column, row}, buffer + box * kBoxBytes);
          }
        }
        ptx::TmaStoreCommit();
      }
    }
    return nonfinite;
  }
};

#endif  // __CUDACC__

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_WGMMA_STORE_H_
