// elect.sync: one thread of a warp, chosen by the hardware. PTX ISA, "elect.sync"; sm_90
// and up.
//
// Why not `lane == 0`: the compiler knows that exactly one thread is elected, so what follows is
// uniform for the warp, and the TMA instructions need no loop over lanes.
#ifndef TCGEMM_KERNELS_PTX_ELECT_H_
#define TCGEMM_KERNELS_PTX_ELECT_H_

#include <cstdint>

#include "kernels/tile/host_device.h"

namespace tcgemm::ptx {

// True for one thread. All 32 threads of the warp must call it together.
TCGEMM_DEVICE bool ElectOne() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

}  // namespace tcgemm::ptx

#endif  // TCGEMM_KERNELS_PTX_ELECT_H_
