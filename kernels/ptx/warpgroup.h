// What the warpgroups of a specialised kernel need: registers moved between them, barriers for some
// of the block's threads. PTX ISA, "setmaxnreg" (sm_90a) and "bar{.cta}".
#ifndef TCGEMM_KERNELS_PTX_WARPGROUP_H_
#define TCGEMM_KERNELS_PTX_WARPGROUP_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// All warps of a warpgroup; REGISTERS a thread, a multiple of 8 from 24 to 256. A sum over the
// block that its launch bounds do not hold hangs.
template <int REGISTERS>
TCGEMM_DEVICE void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
TCGEMM_DEVICE void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Waits for `threads` threads, whole warps, at barrier `name` (1 … 15; 0 is __syncthreads').
TCGEMM_DEVICE void NamedBarrier(uint32_t name, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// Counts as one of those that arrive there, and does not wait ("bar.arrive").
TCGEMM_DEVICE void NamedBarrierArrive(uint32_t name, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_WARPGROUP_H_
