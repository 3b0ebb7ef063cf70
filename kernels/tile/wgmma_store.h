// The way out of tma_wgmma: a warpgroup's accumulators to D. Device code.
//
// Boxes of 64 rows by 128 bytes go through shared memory, as TMA's swizzle has them, and one thread
// asks TMA to store each: whole lines of memory, while the warpgroup goes on. Two take turns in 16
// KiB, so that one is filled while the other is read. TMA writes whole 16-byte pieces and clips at
// the right edge only to those; and swapped operands leave Dᵀ in the registers: both go to memory
// element by element. An epilogue is applied in the registers, before any of them.
#ifndef TCGEMM_KERNELS_TILE_WGMMA_STORE_H_
#define TCGEMM_KERNELS_TILE_WGMMA_STORE_H_

#include <cstdint>

#include "kernels/gpu_problem.h"
#include "kernels/gpu_tiles.h"
#include "kernels/ptx/movmatrix.h"
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

  // Of a box: 128 bytes. The last one ends with the tile: of a tile that is not whole boxes it
  // stores some columns a second time.
  template <bool FP32>
  static constexpr int kBoxColumns = FP32 ? 32 : 64;
  template <bool FP32>
  static constexpr int kBoxes = CeilDiv(TILE.n, kBoxColumns<FP32>);
  static constexpr uint32_t kBoxBytes = 64 * 128;

  // True when a NaN or an Inf is among the columns.
  TCGEMM_DEVICE bool WriteBoxBf16(const float* d, uint32_t box) const {
    const int lane = thread % 32;
    const int row = thread / 32 * 16 + lane % 16;
    uint32_t pairs[4][4];
    const bool nonfinite = PackBf16<16>(d, &pairs[0][0]);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      ptx::Stmatrix4(box + SwizzledOffset<128>(row, part * 2 + lane / 16), pairs[part]);
    }
    return nonfinite;
  }

  TCGEMM_DEVICE bool WriteBoxFp32(const float* d, uint32_t box) const {
    const int lane = thread % 32;
    bool nonfinite = false;
#pragma unroll
    for (int column = 0; column < 32; column += 8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* at = d + column / 2 + half * 2;
        const uint32_t bits[2] = {Fp32Output(at[0]), Fp32Output(at[1])};
        nonfinite |= IsNonfiniteFp32(bits[0]) || IsNonfiniteFp32(bits[1]);
        const int row = thread / 32 * 16 + half * 8 + lane / 4;
        const int byte = column * 4 + lane % 4 * 8;
        const uint32_t to = box + SwizzledOffset<128>(row, byte / 16) + byte % 16;
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

  // With swapped operands the tile is of Dᵀ: a thread holds neighbours of a column of D. In bf16
  // its warp turns blocks of 8x8 over, and it stores pairs.
  TCGEMM_DEVICE bool StoreSwappedBf16(const Accumulators& d, const TileProblem& problem,
                                      TilePosition origin) const {
    const int lane = thread % 32;
    const int row = origin.column + lane / 4;
    const int column = origin.row + index * kRows + thread / 32 * 16 + lane % 4 * 2;
    bool nonfinite = false;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      uint32_t pairs[TILE.n / 4];
      nonfinite |= PackBf16<TILE.n / 4>(d[block], pairs);
#pragma unroll
      for (int i = 0; i < TILE.n / 4; ++i) {
        const uint32_t turned = ptx::MovmatrixTransposed(pairs[i]);
        StorePackedSwapped(problem, row + i / 2 * 8, column + block * 64 + i % 2 * 8, turned);
      }
    }
    return nonfinite;
  }

  template <bool FP32>
  TCGEMM_DEVICE bool StoreSwapped(const Accumulators& d, const TileProblem& problem,
                                  TilePosition origin) const {
    if constexpr (!FP32) return StoreSwappedBf16(d, problem, origin);
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
    if constexpr (TILE.swapped) return StoreSwapped<FP32>(d, problem, origin);
    if (IsRagged<FP32>(problem, origin)) return StoreRagged<FP32>(d, problem, origin);
    bool nonfinite = false;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kBoxes<FP32>; ++i) {
        constexpr int kColumns = kBoxColumns<FP32>;
        const int first = i + 1 < kBoxes<FP32> ? i * kColumns : TILE.n - kColumns;
        const int turn = block * kBoxes<FP32> + i;
        const uint32_t box = buffer + turn % 2 * kBoxBytes;
        // The box before the last one has been read out of shared memory; of a tile's first box
        // that may be the last one's place.
        if (thread == 0) turn == 0 ? ptx::TmaStoreWaitRead<0>() : ptx::TmaStoreWaitRead<1>();
        Sync();
        const float* part = &d[block][first / 2];
        nonfinite |= FP32 ? WriteBoxFp32(part, box) : WriteBoxBf16(part, box);
        ptx::FenceAsyncShared();
        Sync();
        if (thread != 0) continue;
        const int row = origin.row + (index * kBlocks + block) * 64;
        const int column = origin.column + first;
        if (row < problem.m && column < problem.n) ptx::TmaStore2d(&map, {column, row}, box);
        ptx::TmaStoreCommit();
      }
    }
    return nonfinite;
  }
};

#endif  // __CUDACC__

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_WGMMA_STORE_H_
