// Two warpgroups that take tiles in turn, one multiplying while the other writes. Device code.
//
// Their stages come from one ring, in the order of the tiles, and each passes over the other's. A
// wait for an mbarrier's phase is a wait for its parity, and also succeeds two phases too early: so
// none may wait for a stage of a later round of the ring before all stages before it have come.
// Hence a baton: a warpgroup begins to multiply when the other has seen all stages of the tile
// before. Without it products read stages that were not there yet.
#ifndef TCGEMM_KERNELS_TILE_TURNS_H_
#define TCGEMM_KERNELS_TILE_TURNS_H_

#include <cstdint>

#include "kernels/ptx/warpgroup.h"
#include "kernels/tile/host_device.h"

namespace tcgemm {

// Nothing at all unless TAKEN: then every warpgroup has every tile. `group` is 0 or 1; group 0 has
// the first tile of a block, which has at least one.
template <bool TAKEN>
struct Turns {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kBaton = 3;  // of group 0, and the next of group 1; 1 and 2 are stores'

  int group;
  int next = 0;  // whose tile comes

  // Whether the next tile is this group's.
  TCGEMM_DEVICE bool IsMine() {
    if constexpr (!TAKEN) return true;
    const bool mine = next == group;
    next ^= 1;
    return mine;
  }
  // Before the first stage of a tile; `first`: of the block.
  TCGEMM_DEVICE void Take(bool first) const {
    if constexpr (TAKEN) {
      if (!first) ptx::NamedBarrier(kBaton + group, kThreads);
    }
  }
  // All stages of the tile have come; `last`: of the block, nobody waits.
  TCGEMM_DEVICE void Pass(bool last) const {
    if constexpr (TAKEN) {
      if (!last) ptx::NamedBarrierArrive(kBaton + (group ^ 1), kThreads);
    }
  }
};

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_TURNS_H_
