// A ring of stages in shared memory: loads run ahead of the products by all stages but one.
//
// An mbarrier is waited for by the parity of its phase: 0 for the first completion, 1 for the
// second, and so on. Use `n` of the ring's slots is stage n % STAGES in round n / STAGES, and its
// parity is that of the round.
#ifndef TCGEMM_KERNELS_TILE_RING_H_
#define TCGEMM_KERNELS_TILE_RING_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm {

// Counts uses without a division. Starts at use 0.
template <int STAGES>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  // `stages`: of a ring that has not STAGES.
  TCGEMM_HD constexpr void Advance(int stages = STAGES) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // Past `uses` that are somebody else's.
  TCGEMM_HD constexpr void Skip(int uses) {
    const int next = stage + uses;
    stage = next % STAGES;
    parity ^= static_cast<uint32_t>(next / STAGES) & 1u;
  }
};

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_RING_H_
