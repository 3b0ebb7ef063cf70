// A stage of an operand into shared memory: boxes of TMA. Where blocks of a cluster share an
// operand, each of them loads a part and the engine delivers it to all of them, so that it is read
// from the L2 cache once (kernels/gpu_tiles.h says what the parts are). Device code.
#ifndef TCGEMM_KERNELS_TILE_OPERAND_LOAD_H_
#define TCGEMM_KERNELS_TILE_OPERAND_LOAD_H_

#include <cstdint>

#include "kernels/gpu_problem.h"
#include "kernels/gpu_tiles.h"
#include "kernels/ptx/tma.h"
#include "kernels/tile/fragments.h"
#include "kernels/tile/host_device.h"
#include "kernels/tile/raster.h"

namespace tcgemm {

// A block among those of its cluster, which lie column by column over TILE.cluster rows of tiles
// and TILE.cluster_n columns.
template <GpuTile TILE>
struct ClusterPlace {
  int rank = 0;

  TCGEMM_HD int Row() const { return TILE.cluster == 1 ? 0 : rank % TILE.cluster; }
  TCGEMM_HD int Column() const { return TILE.cluster_n == 1 ? 0 : rank / TILE.cluster; }
  // A bit per block with the same tile of A, and of B.
  TCGEMM_HD uint16_t BlocksOfA() const {
    uint32_t blocks = 0;
    for (int column = 0; column < TILE.cluster_n; ++column) blocks |= 1u << column * TILE.cluster;
    return static_cast<uint16_t>(blocks << Row());
  }
  TCGEMM_HD uint16_t BlocksOfB() const {
    return static_cast<uint16_t>(((1u << TILE.cluster) - 1) << Column() * TILE.cluster);
  }
  // Those that load something for this block, itself among them once.
  static constexpr int kSharers = TILE.cluster + TILE.cluster_n - 1;
  TCGEMM_HD uint32_t Sharer(int i) const {
    if (i < TILE.cluster) return static_cast<uint32_t>(Column() * TILE.cluster + i);
    const int other = i - TILE.cluster;
    return static_cast<uint32_t>((other < Column() ? other : other + 1) * TILE.cluster + Row());
  }
};

#ifdef __CUDACC__

// Of EXTENT by K, shared by PARTS blocks, of which this one loads `part`.
template <bool K_MAJOR, int EXTENT, int K, int PARTS>
struct OperandLoad {
  static constexpr int kSlabs = K / kBoxElements;
  static constexpr int kPartRows = KMajorPartRows(EXTENT, K, PARTS);
  static constexpr int kPartK = MnMajorPartK(EXTENT, K, PARTS);
  static_assert(PARTS == 1 || (PARTS % kSlabs == 0 && kPartRows % 8 == 0 && kPartK % 8 == 0));

  const TensorMap& map;
  int part;
  uint16_t blocks;  // that the part goes to
  bool slabs;       // TileProblem::loads_slabs

  // Calls f(where in the stage, in bytes, which box) for each box of the part of a stage that
  // begins at `mn` and `k`.
  template <typename F>
  TCGEMM_DEVICE void ForEachBox(int mn, int k, const F& f) const {
    if constexpr (K_MAJOR) {
      constexpr int kBoxes = PARTS == 1 ? kSlabs : 1;
      const int first = PARTS == 1 ? 0 : part % kSlabs;
      const int row = PARTS == 1 ? 0 : part / kSlabs * kPartRows;
#pragma unroll
      for (int box = first; box < first + kBoxes; ++box) {
        f((box * EXTENT + row) * kBoxRowBytes, ptx::BoxOrigin{k + box * kBoxElements, mn + row});
      }
    } else {
      constexpr bool kWhole = PARTS == 1 || SharesBoxes(EXTENT, PARTS);
      constexpr int kBoxes = CeilDiv(kWhole ? EXTENT / PARTS : EXTENT, kBoxElements);
      const int first = kWhole ? part * kBoxes : 0;
      const int row = kWhole ? 0 : part * kPartK;
#pragma unroll
      for (int box = first; box < first + kBoxes; ++box) {
        f((box * K + row) * kBoxRowBytes, ptx::BoxOrigin{mn + box * kBoxElements, k + row});
      }
    }
  }

  // The map of slabs brings them all at once, to this block.
  TCGEMM_DEVICE bool AtOnce() const { return K_MAJOR && PARTS == 1 && kSlabs > 1 && slabs; }

  TCGEMM_DEVICE void Load(uint32_t to, int mn, int k, uint32_t barrier) const {
    if (AtOnce()) return ptx::TmaLoad3d(to, &map, {0, mn, k / kBoxElements}, barrier);
    ForEachBox(mn, k, [&](uint32_t at, ptx::BoxOrigin origin) {
      if constexpr (PARTS > 1) {
        ptx::TmaLoad2dMulticast(to + at, &map, origin, barrier, blocks);
      } else {
        ptx::TmaLoad2d(to + at, &map, origin, barrier);
      }
    });
  }

  // Into the L2 cache.
  TCGEMM_DEVICE void Prefetch(int mn, int k) const {
    if (AtOnce()) return ptx::TmaPrefetch3d(&map, {0, mn, k / kBoxElements});
    ForEachBox(mn, k, [&](uint32_t, ptx::BoxOrigin origin) { ptx::TmaPrefetch2d(&map, origin); });
  }
};

#endif  // __CUDACC__

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_OPERAND_LOAD_H_
