// The tiles that the Tensor Core kernels are compiled for: data, shared by plan, launch and
// kernels. The sm_90 ones were measured on an H200 (docs/KERNELS.md).
#ifndef TCGEMM_KERNELS_GPU_TILES_H_
#define TCGEMM_KERNELS_GPU_TILES_H_

#include <array>
#include <cstddef>

namespace tcgemm {

// One thread block computes m×n of D, k elements of K at a time, with `stages` of them in shared
// memory, in slabs of at most 64 of K (a row of the widest swizzle). warps_m × warps_n warps share
// the tile.
struct GpuTile {
  int m = 0;
  int n = 0;
  int k = 0;
  int stages = 0;
  int warps_m = 0;
  int warps_n = 0;
  int cluster = 1;  // blocks, one below the other in D, that share their tiles of B
  // The operands are exchanged, so that m counts columns of D and n rows.
  bool swapped = false;
  // Two sets of warps_m × warps_n warps take tiles in turn: one multiplies while the other writes.
  bool ping_pong = false;
  int cluster_n = 1;  // blocks, side by side in D, that share their tiles of A

  constexpr int blocks() const { return cluster * cluster_n; }  // of a cluster
  constexpr bool operator==(const GpuTile&) const = default;
  constexpr int threads() const { return 32 * warps_m * warps_n; }
  // An operand that is stored across K comes in boxes of 64 columns, wanted or not.
  constexpr int stage_columns() const { return (n + 63) / 64 * 64; }
  constexpr size_t stage_bytes() const { return static_cast<size_t>(m + stage_columns()) * k * 2; }
  // Blocks that share a multiprocessor as far as its 65,536 registers go: a thread needs those of
  // its accumulators and about 100 more. A kernel is compiled for this.
  constexpr int blocks_by_registers() const {
    const int blocks = 65536 / (threads() * (m * n / threads() + 100));
    return blocks < 1 ? 1 : blocks;
  }
  // 1024 bytes more than the ring: dynamic shared memory starts 16-byte aligned, and the 128-byte
  // swizzle repeats every 1024 bytes. Another 128 hold the barriers.
  constexpr size_t shared_bytes() const { return stages * stage_bytes() + 1024 + 128; }
};

// An operand that `parts` blocks of a cluster share lies in each one's shared memory, and each
// loads a part of it for all. What of a stage of `extent` by k a part is:
//   K-major   one box of 64 of K (slab part % slabs) and KMajorPartRows rows
//   MN-major  boxes of 64 of the extent, and of K all or, where the boxes cannot be shared out, a
//             part of it: MnMajorPartK
constexpr int KMajorPartRows(int extent, int k, int parts) {
  return parts == 1 ? extent : extent * (k / 64) / parts;
}
constexpr bool SharesBoxes(int extent, int parts) { return extent / parts % 64 == 0; }
constexpr int MnMajorPartK(int extent, int k, int parts) {
  return parts == 1 || SharesBoxes(extent, parts) ? k : k / parts;
}

// Which chips a tile is compiled for, and whether for launches of many problems too (each such
// instantiation carries 32 KiB of parameters).
struct GpuTileEntry {
  GpuTile tile;
  int compute_capability = 0;  // 90: sm_90; 120: sm_120
  bool grouped = false;
  // Rate of full waves of this tile for ChoosePlan: 1 is what mma.sync reaches, 430 TFLOPS (H200).
  double efficiency = 0;
  // Of tma_wgmma: the way out of 128x128 of D, in the plan's unit of time.
  double way_out = 2.18;
};

inline constexpr std::array kGpuTiles = {
    GpuTileEntry{
        {.m = 64, .n = 64, .k = 64, .stages = 4, .warps_m = 2, .warps_n = 2}, 90, true, 0.74},
    GpuTileEntry{
        {.m = 128, .n = 128, .k = 64, .stages = 3, .warps_m = 2, .warps_n = 2}, 90, true, 0.97},
    GpuTileEntry{
        {.m = 128, .n = 256, .k = 64, .stages = 4, .warps_m = 2, .warps_n = 4}, 90, false, 0.99},
    GpuTileEntry{
        {.m = 256, .n = 128, .k = 64, .stages = 4, .warps_m = 4, .warps_n = 2}, 90, false, 1},
    // 99 KiB of shared memory a block on sm_120. Compiled and inspected only: not measured.
    GpuTileEntry{
        {.m = 128, .n = 64, .k = 64, .stages = 2, .warps_m = 2, .warps_n = 2}, 120, true, 0.7},
    GpuTileEntry{
        {.m = 128, .n = 128, .k = 32, .stages = 3, .warps_m = 2, .warps_n = 2}, 120, false, 1},
};

// Of tma_wgmma: warps_m x warps_n are those that multiply one tile, one or two warpgroups; one more
// loads. Pairs of blocks pay where there are waves of them, single blocks fill the chip with fewer
// tiles.
inline constexpr std::array kWgmmaTiles = {
    GpuTileEntry{{128, 256, 64, 4, 8, 1, 2}, 90, false, 1.61},
    GpuTileEntry{{256, 128, 64, 4, 8, 1, 1, false, false, 2}, 90, false, 1.57, 1.09},
    // Widths between, for what those leave half empty: 576 is four times 144, 2112 twelve times
    // 176.
    GpuTileEntry{{128, 192, 64, 4, 8, 1, 1}, 90, false, 1.68},
    GpuTileEntry{{128, 176, 64, 4, 8, 1, 1}, 90, false, 1.69},
    GpuTileEntry{{128, 144, 64, 4, 8, 1, 1}, 90, false, 1.61},
    GpuTileEntry{{128, 128, 64, 6, 8, 1, 1}, 90, true, 1.66},
    // Short K: the way out is a large part of a tile's time, and hidden behind the next tile.
    GpuTileEntry{{192, 128, 64, 4, 4, 1, 1, false, true, 2}, 90, false, 1.58},
    GpuTileEntry{{128, 192, 64, 4, 4, 1, 1, false, true}, 90, false, 1.62},
    GpuTileEntry{{128, 160, 64, 4, 4, 1, 1, false, true}, 90, false, 1.586},
    GpuTileEntry{{128, 128, 64, 6, 4, 1, 1, false, true}, 90, false, 1.63},
    GpuTileEntry{{128, 64, 64, 8, 8, 1, 1}, 90, true, 1.65},
    // Few rows: as much of B in flight as memory needs to stay busy, and stages of two slabs of K,
    // since one thread asks for a box no more often than every 60 ns.
    GpuTileEntry{{64, 8, 128, 7, 4, 1, 1, true}, 90, false, 1},
    GpuTileEntry{{64, 16, 128, 7, 4, 1, 1, true}, 90, false, 1},
    GpuTileEntry{{64, 32, 128, 7, 4, 1, 1, true}, 90, false, 1},
    GpuTileEntry{{64, 64, 128, 7, 4, 1, 1, true}, 90, false, 1},
    // Blocks of a cluster have other rows each, and read the same of B from the L2 cache once.
    GpuTileEntry{{64, 16, 128, 7, 4, 1, 1, true, false, 4}, 90, false, 1},
    GpuTileEntry{{64, 32, 128, 7, 4, 1, 1, true, false, 2}, 90, false, 1},
    GpuTileEntry{{64, 32, 128, 7, 4, 1, 1, true, false, 4}, 90, false, 1},
    GpuTileEntry{{64, 64, 128, 7, 4, 1, 1, true, false, 2}, 90, false, 1},
};
inline constexpr int kWgmmaEpilogueBytes = 2 * 16384;  // a slice of D for each warpgroup
constexpr int WgmmaThreads(const GpuTile& tile) {
  return 128 + 32 * tile.warps_m * (tile.ping_pong ? 2 : 1);
}
// Stages that the ring has room for. `stages` is for the layout that takes most of it; with few
// rows a K-major operand of n rows leaves room for more, and memory far away wants them: 126 KiB
// under way brought 108 GB/s into an SM, 216 KiB 150 (H200).
constexpr size_t WgmmaStageBytes(const GpuTile& tile, bool b_is_k_major) {
  return tile.swapped && b_is_k_major ? static_cast<size_t>(tile.m + tile.n) * tile.k * 2
                                      : tile.stage_bytes();
}
constexpr int WgmmaStages(const GpuTile& tile, bool b_is_k_major) {
  return static_cast<int>(tile.stages * tile.stage_bytes() / WgmmaStageBytes(tile, b_is_k_major));
}
// Clusters that a chip holds at once, one block on a multiprocessor. These come in groups of 16 or
// 18, and a cluster lies in one of them: an H200 has room for 66 clusters of 2 blocks, 30 of 4 and
// 15 of 8 (cudaOccupancyMaxActiveClusters).
constexpr int ClustersAtOnce(int multiprocessors, int blocks) {
  const int usable = blocks <= 2 ? multiprocessors : multiprocessors / 11 * 10;
  return usable / blocks < 1 ? 1 : usable / blocks;
}
// Swapped results go straight to memory.
constexpr size_t WgmmaSharedBytes(const GpuTile& tile) {
  return tile.shared_bytes() + (tile.swapped ? 0 : kWgmmaEpilogueBytes) + 256;
}

inline constexpr GpuTile kSimtTile = {
    .m = 64, .n = 64, .k = 16, .stages = 1, .warps_m = 4, .warps_n = 2};

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_GPU_TILES_H_
